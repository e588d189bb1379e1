"""Collectors and learners in processes of their own: at any pace, and through kill -9."""

from __future__ import annotations

import os
import signal
from ast import literal_eval
from pathlib import Path

import pytest

from tests.procs.conftest import Fork


@pytest.mark.parametrize("slow", ["learner", pytest.param("collector", marks=pytest.mark.slow)])
def test_nothing_piles_up_or_hangs_when_one_node_is_a_hundred_times_slower(
    run_forked, slow
) -> None:
    code, said = run_forked("rates", slow=slow)
    assert code == 0, said
    megabytes, behind, seen = zip(*literal_eval(said.splitlines()[-1]), strict=True)
    assert seen[0] >= 40
    assert max(behind) <= 2
    # 40 items are 40 megabytes; under way are 2 of each collector, and copies of them.
    assert max(megabytes) < 30, said


def test_a_learner_goes_on_without_a_shard_that_is_killed_and_takes_it_up_again(fork) -> None:
    with fork("shards") as program:
        pids = program.pids(3)
        program.line("trained")
        os.kill(pids[2], signal.SIGKILL)
        assert program.line("lost") == ["lost", "2"]
        code, said = program.end()
        assert code == 0, said
        assert said.splitlines()[-1] == "(True, ())"


def test_the_learner_of_shards_may_be_killed_too(fork: Fork, folder: Path) -> None:
    with fork("shards") as program:
        pids = program.pids(3)
        program.line("trained")
        os.kill(pids[0], signal.SIGKILL)
        assert program.line("up 0")
        program.line("trained")
        (folder / "go").touch()
        code, said = program.end()
        assert code == 0, said
        assert said.splitlines()[-1] == "(True, ())"
