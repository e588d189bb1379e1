"""Any process of a job is killed at any moment, in any kind of job: one round is one test.

A round is decided by its number and a seed: the topology, the protocol, whether nodes are
restarted, which process gets which signal, and when. 500 rounds take half an hour on two cores:

    pytest -m "" tests/procs/test_kill_rounds.py --kill-rounds 500 --kill-seed 1 -q -rf --tb=line
"""

from __future__ import annotations

import random
import select
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

import pytest

from tests.procs.killing import ROLES, STAGES, Run, running
from tests.procs.programs import Job

NUM_QUICK = 2
"""Rounds that are no slow tests."""
ENDING = ("finish", "return")
MAX_DELAY_S = 0.3
"""The longest time from what a node says to the signal: a job that ends has ended by then."""
MAX_END_S = 20.0
"""How long the end of a job may take that has failed; machines are slow."""
LOSSES = {
    signal.SIGKILL: "was killed by SIGKILL",
    signal.SIGTERM: "by SIGTERM while",
}


@dataclass(frozen=True, kw_only=True)
class Round:
    """The job, victim and moment of one round."""

    topology: str
    protocol: str
    recover: bool
    victim: str
    signum: signal.Signals
    role: str
    stage: str
    delay_s: float

    @classmethod
    def of(cls, seed: int, number: int) -> Round:
        """Draw a round."""
        draw = random.Random(f"{seed}-{number}")
        stage = draw.choice([*STAGES, *ENDING])  # the end has more to go wrong
        return cls(
            topology=draw.choice(["star", "mesh", "tree:1"]),
            protocol=draw.choice(["ipc", "tcp"]),
            recover=draw.random() < 0.5,
            victim=draw.choice([*ROLES, *ROLES, "fork_server", "launcher"]),
            signum=draw.choice([signal.SIGKILL, signal.SIGTERM]),
            role="evaluator" if stage == "finish" else draw.choice(ROLES),
            stage=stage,
            delay_s=draw.choice([0.0, MAX_DELAY_S * draw.random()]),
        )

    @property
    def is_ending(self) -> bool:
        return self.stage in ENDING

    def __str__(self) -> str:
        recover = "restarts" if self.recover else "none"
        kill = f"{self.signum.name}-{self.victim}-{self.role}-{self.stage}-{self.delay_s:.3f}"
        return f"{self.topology}-{self.protocol}-{recover}-{kill}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed = metafunc.config.getoption("--kill-seed")
    rounds = []
    for number in range(metafunc.config.getoption("--kill-rounds")):
        drawn = Round.of(seed, number)
        marks = [pytest.mark.slow] if number >= NUM_QUICK else []
        rounds.append(pytest.param(drawn, id=f"{number}-{drawn}", marks=marks))
    metafunc.parametrize("drawn", rounds)


def test_a_job_ends_right_or_fails_at_once_and_leaves_nothing(folder: Path, drawn: Round) -> None:
    protocol, topology = drawn.protocol, drawn.topology
    start = partial(Job, folder)
    with running(start, recover=drawn.recover, protocol=protocol, topology=topology) as run:
        if drawn.is_ending:
            run.may_end()
        run.follow(drawn.role, drawn.stage, drawn.victim)
        select.select([], [], [], drawn.delay_s)
        killed_at = run.kill(drawn.victim, drawn.signum)
        is_node = drawn.victim in ROLES
        if not drawn.is_ending and is_node and drawn.recover:
            run.wait_for_return(drawn.victim)
            run.may_end()
        is_harmless = (drawn.victim, drawn.signum) == ("fork_server", signal.SIGTERM)
        if is_harmless:
            run.may_end()
        code, results = run.end()  # which looks for processes, sockets, segments
        assert monotonic() - killed_at < MAX_END_S or (is_node and drawn.recover) or is_harmless
        check_end(drawn, run, code, results)


def check_end(drawn: Round, run: Run, code: int, results: str) -> None:
    output = run.program.seen
    everything = (0, "[True, True, True]")
    if (drawn.victim, drawn.signum) == ("fork_server", signal.SIGTERM):
        assert (code, results) == everything, output
        assert [line for line in output.splitlines()[:-1] if not line.startswith("at ")] == []
    elif drawn.is_ending and (code, results) == everything:
        return  # it had ended
    elif drawn.victim == "launcher":
        # Behind the runner, as the program ends, SIGTERM does what it does to any program.
        in_order = {143, -signal.SIGTERM} if drawn.is_ending else {143}
        assert code in ({-signal.SIGKILL} if drawn.signum == signal.SIGKILL else in_order), output
    elif drawn.victim == "fork_server":
        assert code == 1, output
        assert "NodeFailed: The fork server, the parent of the nodes, has died" in output
    elif drawn.recover:
        assert code == 0, output
        # Where the job was ending already, the victim may have no result.
        allowed = {"True", "None"} if drawn.is_ending else {"True"}
        assert {*results.strip("[]").split(", ")} <= allowed, output
        assert results.count("True") >= 2, output
    else:
        assert code == 1, output
        assert f"NodeFailed: Node {ROLES.index(drawn.victim)} " in output, output
        assert LOSSES[drawn.signum] in output, output
