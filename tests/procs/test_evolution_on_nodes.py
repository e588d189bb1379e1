"""Populations over processes: the same every time, and nothing is lost with a node."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.procs.conftest import Fork, RunForked

SLOW = pytest.mark.slow  # as each starts several processes that import PyTorch

ROLES = ["breeder", "learner", "learner"]


def given(**more: Any) -> dict[str, Any]:
    return {"victim": None, "recover": False, "roles": ROLES, "saved": "saved", **more}


@SLOW
def test_a_seed_gives_the_same_population_on_the_same_nodes(run_learner: RunForked) -> None:
    ends = []
    for folder in ("first", "second"):
        output = run_learner("evolution", **given(saved=folder))
        ends.append(output.splitlines()[-1])
    assert ends[0] == ends[1]
    assert ends[0].startswith("ended ")
    env_steps = 3 * 4 * 2 * 8  # generations, members, steps, env steps
    assert ends[0].endswith(f" {env_steps}")


@SLOW
def test_one_node_evolves_a_population_alone(run_learner: RunForked) -> None:
    output = run_learner("evolution", **given(roles=[["breeder", "learner"]]))
    assert output.splitlines()[-1].endswith(f" {3 * 4 * 2 * 8}")


@pytest.mark.parametrize("victim", [pytest.param(1, marks=SLOW), 2])
def test_evolution_goes_on_when_a_learner_is_killed(fork_learner: Fork, victim: int) -> None:
    with fork_learner("evolution", **given(victim=victim, recover=True)) as job:
        pids = job.pids(3)
        places = job.line("training")[1:]
        assert places == (["0", "2"] if victim == 1 else ["1", "3"])
        os.kill(pids[victim], signal.SIGKILL)
        pids |= {victim + 10: job.pids(1)[victim]}
        output = job.result()
        words = output.splitlines()[-1].split()
        assert words[0] == "ended", output
        assert words[2] == "2", output  # both members of the killed node were trained again
        assert words[-1] == str(3 * 4 * 2 * 8), output  # and what was lost is not counted
        job.leaves_nothing(*pids.values())


@SLOW
def test_a_killed_breeder_goes_on_from_the_last_whole_generation(fork_learner: Fork) -> None:
    with fork_learner("evolution", **given(victim=1, recover=True)) as job:
        pids = job.pids(3)
        job.line("training")
        os.kill(pids[0], signal.SIGKILL)
        job.pids(1)
        assert job.line("goes on at generation")[-1] == "1"
        os.kill(pids[1], signal.SIGKILL)  # it waits in vain otherwise
        output = job.result()
    assert output.splitlines()[-1].split()[-1] == str(3 * 4 * 2 * 8), output
