"""Any process of a job is killed at any moment, in any kind of job: one round is one test.

A round is decided by its number and a seed: the topology, the protocol, whether nodes are
restarted, which process gets which signal, and when. 500 rounds take half an hour on two cores:

    pytest -m "" tests/procs/test_kill_rounds.py --kill-rounds 500 --kill-seed 1 -q -rf --tb=line
"""

from __future__ import annotations

import random
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.procs.killing import ROLES, STAGES, Round
from tests.procs.programs import Job

NUM_QUICK = 2
"""Rounds that are no slow tests."""
MAX_DELAY_S = 0.3
"""The longest time from what a node says to the signal: a job that ends has ended by then."""


def round_of(seed: int, number: int) -> Round:
    draw = random.Random(f"{seed}-{number}")
    stage = draw.choice([*STAGES, "finish", "return"])  # the end has more to go wrong
    return Round(
        topology=draw.choice(["star", "mesh", "tree:1"]),
        protocol=draw.choice(["ipc", "tcp"]),
        recover=draw.random() < 0.5,
        victim=draw.choice([*ROLES, *ROLES, "fork_server", "launcher"]),
        signum=draw.choice([signal.SIGKILL, signal.SIGTERM]),
        role="evaluator" if stage == "finish" else draw.choice(ROLES),
        stage=stage,
        delay_s=draw.choice([0.0, MAX_DELAY_S * draw.random()]),
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed = metafunc.config.getoption("--kill-seed")
    rounds = []
    for number in range(metafunc.config.getoption("--kill-rounds")):
        drawn = round_of(seed, number)
        marks = [pytest.mark.slow] if number >= NUM_QUICK else []
        rounds.append(pytest.param(drawn, id=f"{number}-{drawn}", marks=marks))
    metafunc.parametrize("drawn", rounds)


def test_a_job_ends_right_or_fails_at_once_and_leaves_nothing(folder: Path, drawn: Round) -> None:
    drawn.play(partial(Job, folder))
