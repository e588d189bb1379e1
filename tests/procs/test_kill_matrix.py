"""kill -9 of every process in turn: the run ends right, or fails at once and cleanly.

All stages and all victims are there once, the other pairs of them are slow tests.
"""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from tests.procs.conftest import Fork
from tests.procs.killing import ROLES, STAGES, others, running

MOMENTS = [
    (victim, "evaluator" if stage == "finish" else role, stage)
    for victim in ROLES
    for stage in [*STAGES, "exit"]
    for role in (
        [victim] if stage in ("finish", "exit") else [victim, others(victim)[len(stage) % 2]]
    )
]
"""The victim of each round, and the node and stage at which it is killed."""


def some(*values: object, is_quick: bool, id: str | None = None) -> Any:
    return pytest.param(*values, id=id, marks=[] if is_quick else [pytest.mark.slow])


@pytest.mark.parametrize(
    "number",
    [some(k, is_quick=k % 3 == 0, id="-".join(moment)) for k, moment in enumerate(MOMENTS)],
)
def test_with_auto_recover_the_run_ends_right(fork: Fork, number: int) -> None:
    victim, role, stage = MOMENTS[number]
    is_ending = stage in ("finish", "return", "exit")
    with running(fork, recover=True, number=number) as run:
        if is_ending:
            run.may_end()
        run.follow(role, stage, victim)
        run.kill(victim)
        if not is_ending:
            run.wait_for_return(victim)
            run.may_end()
        code, results = run.end()
        assert code == 0, run.program.seen
        # Where the job was ending already, the victim may have no result.
        allowed = {"True", "None"} if is_ending and stage != "exit" else {"True"}
        assert {*results.strip("[]").split(", ")} <= allowed, run.program.seen
        assert results.count("True") >= 2


def test_with_auto_recover_the_run_ends_right_even_if_all_nodes_are_killed(fork: Fork) -> None:
    with running(fork, recover=True) as run:
        run.follow("learner", "step-5", "collector")
        for victim in ROLES:
            run.kill(victim)
        run.wait_for_return(*ROLES)
        run.may_end()
        assert run.end() == (0, "[True, True, True]"), run.program.seen


def test_a_wall_clock_that_jumps_by_hours_changes_nothing(fork: Fork) -> None:
    with running(fork, recover=True, number=1, jumps=True) as run:
        run.follow("learner", "step-5", "collector")
        run.kill("collector")
        run.wait_for_return("collector")
        run.may_end()
        assert run.end() == (0, "[True, True, True]"), run.program.seen


@pytest.mark.parametrize(
    ("victim", "stage"),
    [
        some(victim, stage, is_quick=(i - k) % 3 == 0)
        for i, victim in enumerate([*ROLES, "fork_server"])
        for k, stage in enumerate(["import", "main", "step-5"])
    ],
)
def test_without_auto_recover_the_launcher_raises_and_nothing_is_left(fork, victim, stage):
    role = "learner" if victim == "fork_server" else victim
    with running(fork, recover=False, number=len(victim + stage)) as run:
        run.follow(role, stage, victim)
        killed_at = run.kill(victim)
        code, _ = run.end()
        assert code == 1
        if victim == "fork_server":
            assert (
                "NodeFailed: The fork server, the parent of the nodes, has died" in run.program.seen
            )
        else:
            output = (
                f"Node {ROLES.index(victim)} (process {run.pids[victim]}) was killed by SIGKILL"
            )
            assert f"NodeFailed: {output}" in run.program.seen
        # Not at the begin of a line: another process may have written half of one.
        [failed_at] = re.findall(r"failed (\d+\.\d+)", run.program.seen)
        assert float(failed_at) - killed_at < 10.0


@pytest.mark.parametrize(
    ("stage", "recover"),
    [
        some(stage, recover, is_quick=recover == (k % 2 == 0))
        for k, stage in enumerate(["import", "main", "step-5", "finish"])
        for recover in (True, False)
    ],
)
def test_when_the_launcher_is_killed_all_end_and_nothing_is_left(fork, stage, recover) -> None:
    with running(fork, recover=recover, number=len(stage)) as run:
        if stage == "finish":
            run.may_end()
        run.follow("evaluator", stage, "collector")
        run.kill("launcher")
        code, _ = run.end()
        assert code == -signal.SIGKILL
