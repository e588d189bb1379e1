"""The nodes of a job as processes: their results, their failures, their restarts, their end."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ding_lite.errors import ConfigError, NodeFailed
from ding_lite.parallel import Parallel
from ding_lite.parallel.launch import launch
from ding_lite.parallel.supervise import supervisor as supervise
from tests.procs import mains
from tests.procs.programs import wait_until_gone


def run_nodes(
    main: Callable[..., Any], *args: Any, num_nodes: int = 2, max_retries: int = 0, **given: Any
) -> list[Any]:
    given |= {"auto_recover": max_retries > 0, "max_retries": max_retries}
    return Parallel.runner(num_nodes, **given)(main, *args)


# -- results -------------------------------------------------------------------------------


def test_results_come_back_by_node_and_arguments_labels_and_roles_arrive() -> None:
    blob = bytes(range(256)) * 8_000
    results = run_nodes(
        mains.arguments, 1, {"two": blob}, num_nodes=3, labels="gpu", roles=["learner", "c", "c"]
    )
    assert results == [
        (0, ["distributed", "gpu", "learner", "learner.0", "node.0"], (1, {"two": blob}), {}),
        (1, ["c", "c.0", "distributed", "gpu", "node.1"], (1, {"two": blob}), {}),
        (2, ["c", "c.1", "distributed", "gpu", "node.2"], (1, {"two": blob}), {}),
    ]


def test_nodes_end_although_the_program_has_blocked_sigchld() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        assert run_nodes(max, 1, 2) == [2, 2]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_nodes_have_this_directory_environment_and_arguments_and_groups_of_their_own(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TEST_OF_NODES", "here")
    results = run_nodes(mains.whereabouts)
    assert [result[:3] for result in results] == [(str(folder), sys.argv, "here")] * 2
    assert all(pid == group for *_, pid, group in results)
    assert len({os.getpid(), *(pid for *_, pid, _ in results)}) == 3


def test_no_two_nodes_draw_the_same_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "slow_to_import", lambda: ("numpy", "torch"))
    drawn = run_nodes(mains.random_numbers)
    assert len({number for numbers in drawn for number in numbers}) == 6


def test_a_node_may_leave_by_sys_exit() -> None:
    assert run_nodes(mains.leave_with, 0) == [None, None]


def test_processes_that_a_node_has_started_end_with_it() -> None:
    wait_until_gone(*run_nodes(mains.start_a_process))


def test_a_thread_that_will_not_end_does_not_hold_up_the_results(monkeypatch, caplog):
    monkeypatch.setattr(supervise, "EXIT_GRACE_S", 0.2)
    assert run_nodes(mains.linger) == [0, 1]
    assert "node 0 has not ended" in caplog.text
    assert "a non-daemon thread" in caplog.text


# -- failures ------------------------------------------------------------------------------


def test_an_error_on_one_node_ends_all_and_is_raised_here() -> None:
    with pytest.raises(NodeFailed) as caught:
        run_nodes(mains.fail_on, 1, num_nodes=3)
    error = caught.value
    assert error.node_id == 1
    assert str(error).startswith("Node 1 failed while running `main`: ZeroDivisionError: on 1.")
    assert re.search(r'mains.py", line \d+, in fail_on\n +raise ZeroDivisionError', str(error))
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.__cause__.__notes__ == ["on node 1"]


def test_nodes_that_ignore_sigterm_are_killed() -> None:
    with pytest.raises(NodeFailed) as caught:
        run_nodes(mains.fail_stubbornly, 0)
    assert caught.value.node_id == 0
    assert "In the same second" not in str(caught.value)


def test_the_error_is_known_before_its_node_has_closed_everything() -> None:
    with pytest.raises(NodeFailed, match="Node 1 failed"):
        run_nodes(mains.fail_and_never_close)


@pytest.mark.parametrize(
    ("main", "args", "reported"),
    [
        (mains.fail_oddly, (), "Unpicklable: 1 and 2(.|\n)*in fail_oddly"),
        (mains.fail_with_an_error_that_cannot_be_passed_on, (), "Node 1 .*NeverPickled: in time"),
        (
            mains.fail_without_a_message,
            (),
            r"Node \d failed .*Speechless: \(no message: RuntimeError was raised(.|\n)*in fail",
        ),
        (mains.leave_with, (3,), "Node 1 failed while running `main`: SystemExit: 3"),
        (mains.return_a_lambda, (), "returned a function that cannot be passed"),
        (
            mains.return_an_unreadable_object,
            (),
            "returned an object that cannot be read again: EOFError: not here. Return",
        ),
        (mains.raise_keyboard_interrupt, (), "`main` raised KeyboardInterrupt without Ctrl-C"),
        (mains.signal_myself, (int(signal.SIGINT),), "Node 1 failed(.|\n)*KeyboardInterrupt"),
    ],
)
def test_what_ends_a_node_is_named(main: Any, args: Any, reported: str) -> None:
    with pytest.raises(NodeFailed, match=reported):
        run_nodes(main, *args)


@pytest.mark.parametrize("max_retries", [0, 1])
def test_a_stopped_node_is_killed_and_named_when_all_others_have_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, max_retries: int
) -> None:
    monkeypatch.setattr(supervise, "EXIT_GRACE_S", 0.5)
    monkeypatch.setenv("DING_LITE_LINGER", "1")
    if max_retries:
        assert run_nodes(mains.stop_on, 1, max_retries=1) == [0, None]
    else:
        with pytest.raises(
            NodeFailed, match=r"Node 1 \(process \d+\) was stopped by SIGSTOP while"
        ):
            run_nodes(mains.stop_on, 1)
    assert "SIGCONT continues it, else it is killed in 0 s" in caplog.text


def test_an_argument_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(ConfigError, match=r"argument 2 of `main` is <function .*<lambda>"):
        run_nodes(mains.arguments, 1, lambda: None)


@pytest.mark.parametrize("argument", [mains.Unreadable(), mains.Unpicklable(1, 2)])
def test_an_argument_that_cannot_be_read_again_is_reported(argument: Any) -> None:
    with pytest.raises(ConfigError, match="An argument of `main` cannot be read again on node"):
        run_nodes(mains.arguments, argument)


# -- restarts ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_node_is_restarted_under_its_id_as_a_new_incarnation(folder, how, caplog):
    caplog.set_level(logging.WARNING)
    results = run_nodes(mains.die_in_the_first_incarnations, str(folder), 3, how, max_retries=2)
    assert results == [["0-1"], ["1-1", "1-2", "1-3"]]
    assert "restart 1 of 2 in 0.1 s" in caplog.text
    assert "restart 2 of 2 in 0.2 s" in caplog.text
    assert ("in die_in_the_first_incarnations" in caplog.text) is (how == "raise")


def test_a_failed_node_that_will_not_end_is_killed_and_restarted(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(supervise, "EXIT_GRACE_S", 0.2)
    assert run_nodes(mains.fail_and_linger, str(folder), max_retries=1) == [1, 2]
    assert "node 1 has not ended" in caplog.text
