"""The reports of an engine, and the supervisor's conclusions from them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ding_lite.errors import NodeFailed
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.supervise import supervisor as supervise
from ding_lite.parallel.supervise.job import EngineLost, NodeRecord, Report
from ding_lite.parallel.supervise.node_process import (
    IMPORTING,
    RUNNING,
    Ended,
    Entered,
    Exited,
    Failed,
    Finish,
    Returned,
    Stopped,
)
from ding_lite.parallel.supervise.supervisor import back_off, run_job

Turn = Sequence[tuple[int, Report]] | Callable[[], None]
UP, KILLED = Entered(RUNNING), Exited("was killed", "", signal.SIGKILL)
GONE = Exited("ended")
RUN = [(node_id, UP) for node_id in range(3)]


class ScriptedEngine:
    """An engine that reports what a test says, and records what it was asked for."""

    name = "The script"
    forwards_signals = True

    def __init__(self, *turns: Turn) -> None:
        self.turns = list(turns)
        self.done: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        """Record a call of any other method."""
        return lambda *args: self.done.append((name, *args))

    def start(self, node: NodeRecord) -> None:
        self.done.append(("start", node.spec.node_id, node.spec.incarnation))

    def wait(self, timeout: float | None) -> Sequence[tuple[int, Report]]:
        if not self.turns:
            raise EngineLost
        turn = self.turns.pop(0)
        if callable(turn):
            turn()
            return []
        return turn


@pytest.fixture(autouse=True)
def _restarts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "back_off", lambda _: 0.0)


def run(engine: ScriptedEngine, *, max_retries: int = 0) -> list[Any]:
    """Run a star of three nodes."""
    plan = JobPlan(num_nodes=3, topology="star", startup_timeout=None)
    specs = plan.specs_at([f"inproc://{k}" for k in range(3)], job="")
    scripted: Any = engine
    return run_job(specs, scripted, max_retries=max_retries)


def ends(*node_ids: int) -> list[tuple[int, Report]]:
    """Return the reports of nodes that return their id, and exit."""
    return [(k, report) for k in node_ids for report in (Returned(k), GONE)]


def test_a_job_is_over_when_all_nodes_have_returned_and_exited() -> None:
    engine = ScriptedEngine(RUN, ends(2, 0), ends(1))
    assert run(engine) == [0, 1, 2]
    assert [did[0] for did in engine.done] == ["open", *["start"] * 3, *["send"] * 4, "close"]
    assert ("send", 0, Ended(2, 1)) in engine.done


def test_a_node_is_restarted_as_often_as_allowed_and_its_peers_hear_of_each_end() -> None:
    engine = ScriptedEngine(RUN, [(1, KILLED)], [(1, UP)], [(1, KILLED)], [(0, GONE), (2, GONE)])
    message = r"Node 1 was killed while running.*Restarts of this node before: 1"
    with pytest.raises(NodeFailed, match=message) as caught:
        run(engine, max_retries=1)
    assert caught.value.node_id == 1
    started = [did[2] for did in engine.done if did[:2] == ("start", 1)]
    assert started == [1, 2]
    sent = [did[1:] for did in engine.done if did[0] == "send"]
    assert sent[:2] == [(0, Ended(1, 1)), (0, Ended(1, 2))]
    assert "end" in [did[0] for did in engine.done]


def test_a_node_that_cannot_import_the_program_is_not_restarted() -> None:
    fault = Failed(IMPORTING, "ImportError", "no such module", "", ImportError())
    engine = ScriptedEngine([(1, fault), (1, GONE), (0, GONE), (2, GONE)])
    with pytest.raises(NodeFailed, match="ImportError: no such module"):
        run(engine, max_retries=3)


def test_the_peers_of_a_node_that_was_given_up_are_told_to_finish() -> None:
    engine = ScriptedEngine(RUN, [(0, KILLED)], ends(1), [(0, KILLED)], ends(2))
    assert run(engine, max_retries=3) == [None, 1, 2]
    assert ("kill", 0) in engine.done
    assert ("send", 2, Finish()) in engine.done


def test_the_result_of_a_restarted_node_counts_though_that_of_another_is_read_first() -> None:
    engine = ScriptedEngine(RUN, [(1, KILLED)], [*ends(0), (1, UP), *ends(1, 2)])
    assert run(engine, max_retries=1) == [0, 1, 2]


def test_a_stopped_node_has_no_deadline_while_others_run_or_once_it_continues(monkeypatch) -> None:
    monkeypatch.setattr(supervise, "EXIT_GRACE_S", 0.0)
    engine = ScriptedEngine(RUN, [(1, Stopped(7))], ends(0), [(1, Stopped(None))], ends(2), ends(1))
    assert run(engine) == [0, 1, 2]
    engine = ScriptedEngine(RUN, [(1, Stopped(7))], ends(0), ends(2), [(1, KILLED)])
    with pytest.raises(NodeFailed, match=r"Node 1 \(process 7\) was stopped by SIGSTOP"):
        run(engine)
    assert ("kill", 1) in engine.done


def test_an_engine_that_is_lost_ends_the_job() -> None:
    engine = ScriptedEngine(RUN)
    with pytest.raises(NodeFailed, match="The script has died, so the nodes were killed"):
        run(engine)
    assert engine.done[-1] == ("close",)


def test_a_signal_is_raised_though_an_engine_that_keeps_it_from_main_has_all_results() -> None:
    for forwards in (True, False):
        engine = ScriptedEngine(RUN, lambda: signal.raise_signal(signal.SIGINT), ends(0, 1, 2))
        engine.forwards_signals = forwards
        if forwards:
            assert run(engine) == [0, 1, 2]
        else:
            with pytest.raises(KeyboardInterrupt):
                run(engine)


def test_the_back_off_doubles_up_to_a_limit() -> None:
    assert [back_off(number) for number in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert back_off(5_000) == 5.0
