"""kill -9 of every process in turn: the run ends right, or fails at once and cleanly.

All stages and all victims are there once, the other pairs of them are slow tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.procs.conftest import Fork
from tests.procs.killing import ROLES, STAGES, Round, others, running

PROTOCOLS = ("ipc", "tcp")
MOMENTS = [
    (victim, "evaluator" if stage == "finish" else role, stage)
    for victim in ROLES
    for stage in [*STAGES, "exit"]
    for role in (
        [victim] if stage in ("finish", "exit") else [victim, others(victim)[len(stage) % 2]]
    )
]
"""A victim, and the node and stage at which it is killed."""


def some(is_quick: bool, number: int, **what: Any) -> Any:
    drawn = Round(protocol=PROTOCOLS[number % 2], **what)
    return pytest.param(drawn, id=str(drawn), marks=[] if is_quick else [pytest.mark.slow])


def rounds() -> Iterator[Any]:
    for number, (victim, role, stage) in enumerate(MOMENTS):
        yield some(number % 3 == 0, number, recover=True, victim=victim, role=role, stage=stage)
    for i, victim in enumerate([*ROLES, "fork_server"]):
        moment = {"victim": victim, "role": "learner" if victim == "fork_server" else victim}
        for k, stage in enumerate(["import", "main", "step-5"]):
            is_quick = (i - k) % 3 == 0
            yield some(is_quick, len(victim + stage), recover=False, stage=stage, **moment)
    moment = {"victim": "launcher", "role": "evaluator"}
    for k, stage in enumerate(["import", "main", "step-5", "finish"]):
        for recover in (True, False):
            yield some(recover == (k % 2 == 0), len(stage), recover=recover, stage=stage, **moment)


@pytest.mark.parametrize("drawn", [*rounds()])
def test_a_job_ends_right_or_fails_at_once_and_leaves_nothing(fork: Fork, drawn: Round) -> None:
    drawn.play(fork)


@pytest.mark.parametrize(
    ("victims", "jumps"),
    [
        pytest.param(ROLES, False, id="all nodes at once"),
        pytest.param(["collector"], True, id="a wall clock that jumps by hours"),
    ],
)
def test_with_auto_recover_the_run_ends_right_also_with(
    fork: Fork, victims: list[str], jumps: bool
) -> None:
    with running(fork, recover=True, protocol=PROTOCOLS[jumps], jumps=jumps) as run:
        run.follow("learner", "step-5", "collector")
        for victim in victims:
            run.kill(victim)
        run.wait_for_return(*victims)
        run.may_end()
        assert run.end() == (0, "[True, True, True]"), run.program.seen
