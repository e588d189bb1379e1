"""The root failure among several, and the error raised for it."""

from __future__ import annotations

import resource
import signal
from typing import Any

import pytest

from ding_lite.errors import ConfigError, NodeFailed, PeerLost
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.supervise.failures import Failure, crashed, root_failure_error
from ding_lite.parallel.supervise.local_engine import exited
from ding_lite.parallel.supervise.node_process import IMPORTING, RUNNING


def spec(node_id: int, incarnation: int = 1) -> NodeSpec:
    return NodeSpec(node_id=node_id, num_nodes=4, labels=frozenset(), incarnation=incarnation)


def failure(node_id: int, error: BaseException, *, at: float = 0.0, **more: Any) -> Failure:
    kind = type(error).__name__
    values = {"spec": spec(node_id), "stage": RUNNING, "what": f"failed: {kind}", "kind": kind}
    return Failure(**{**values, "at": at, "error": error, **more})


def test_the_failure_of_a_lost_peer_is_the_cause_and_not_the_loss() -> None:
    killed = crashed(spec(2), RUNNING, exited(-signal.SIGKILL, 1234))
    lost = failure(0, PeerLost("node 2 has gone"), at=killed.at - 0.5)
    error = root_failure_error([lost, killed])
    assert isinstance(error, NodeFailed)
    assert error.node_id == 2
    assert str(error).startswith("Node 2 (process 1234) was killed by SIGKILL while running")
    assert error.__cause__ is None
    assert isinstance(root_failure_error([lost]).__cause__, PeerLost)


@pytest.mark.parametrize("num_files", [512, 4096])
def test_an_abort_with_few_files_names_the_limit(num_files: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, hard))
        error = root_failure_error([crashed(spec(1), RUNNING, exited(-signal.SIGABRT, 1))])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ("A process may open 512 files" in str(error)) == (num_files == 512)


def test_nodes_that_ended_by_request_are_not_reported() -> None:
    ended = failure(1, SystemExit(143), at=0.1)
    terminated = crashed(spec(2), RUNNING, exited(-15, 1))
    error = root_failure_error([failure(0, KeyError("x")), ended, terminated])
    assert isinstance(error.__cause__, KeyError)
    assert "In the same second" not in str(error)


def test_failures_within_a_second_are_an_exception_group() -> None:
    first, soon, later = (
        failure(node_id, KeyError(node_id), at=at, what="failed: KeyError.")
        for node_id, at in ((0, 0.0), (1, 0.9), (2, 1.1))
    )
    error = root_failure_error([first, soon, later])
    assert isinstance(error.__cause__, ExceptionGroup)
    assert error.__cause__.exceptions == (first.error, soon.error)
    assert str(error) == "Node 0 failed: KeyError. In the same second: node 1 failed: KeyError."


def test_a_config_error_during_import_is_raised_as_it_is() -> None:
    fault = failure(0, ConfigError("no guard"), stage=IMPORTING)
    error = root_failure_error([fault, failure(1, ConfigError("no guard"), stage=IMPORTING)])
    assert isinstance(error, ConfigError)
    assert str(error) == "no guard"
    assert not fault.may_pass
    assert crashed(spec(0), IMPORTING, exited(-9, 1)).may_pass


def test_a_crash_names_the_exit_code_or_signal_and_the_incarnation() -> None:
    assert "ended with exit code 7" in crashed(spec(0), RUNNING, exited(7, 12)).what
    assert "killed by signal 62" in crashed(spec(0), RUNNING, exited(-62, 12)).what
    again = root_failure_error([failure(0, KeyError("x"), spec=spec(0, incarnation=3))])
    assert "Restarts of this node before: 2." in str(again)


def test_a_message_that_ends_with_a_question_gets_no_full_stop() -> None:
    error = root_failure_error([failure(0, TimeoutError(), what="failed: TimeoutError: Who?")])
    assert str(error) == "Node 0 failed: TimeoutError: Who?"
