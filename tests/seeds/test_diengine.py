"""The programs of the document about tasks, from a plain loop to async mode, by what they do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ding_lite.framework import Parallel
from ding_lite.nest import leaves, path_name
from ding_lite.rl import load_checkpoint
from tests.seeds import programs
from tests.seeds.diengine import BaseLearner, BaseSerialEvaluator, SampleCollector, cfg


class Played:
    """The results of a program that has run."""

    def __init__(self, made: tuple[BaseLearner, SampleCollector, BaseSerialEvaluator]) -> None:
        self.learner, collector, evaluator = made
        self.envstep, self.history = collector.envstep, evaluator.history
        self.weights = fingerprint(self.learner.policy.state_dict())

    def ends_with_what_it_saves(self) -> Mapping[str, Any]:
        last = load_checkpoint(self.learner.checkpoints / "ckpt")
        assert fingerprint(last.state) == self.weights
        return last.meta


def play(program: Callable[..., Any], *, stop_value: float = math.inf, **arguments: Any) -> Played:
    cfg.policy.eval.evaluator.update(eval_freq=80, stop_value=stop_value)
    return Played(program(**arguments))


def fingerprint(state: Any) -> dict[str, bytes]:
    """Return every number of a policy's state, bit for bit: networks, optimizer, generator."""
    return {path_name(path): np.asarray(leaf).tobytes() for path, leaf in leaves(state)}


def test_all_programs_learn_the_same_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    serial, *others = (
        play(program, max_iterations=60)
        for program in (programs.serial, programs.decoupled, programs.magic)
    )
    assert serial.learner.train_iter > 200
    assert serial.envstep == 60 * 8
    assert len(serial.history) > 1
    for other in others:
        assert other.weights == serial.weights
        assert (other.history, other.envstep) == (serial.history, serial.envstep)
    tables = capsys.readouterr().err.split("step timer, ")[1:]
    assert [int(table.split()[0]) for table in tables] == list(range(1, 61))
    names = ["evaluate", "collect", "train"]
    assert all([row.split()[0] for row in table.splitlines()[1:4]] == names for table in tables)


def test_another_seed_learns_something_else() -> None:
    first = play(programs.decoupled, max_iterations=40)
    cfg.seed = 1
    assert play(programs.decoupled, max_iterations=40).weights != first.weights


def test_a_task_finishes_the_step_in_which_it_stops_and_saves_what_it_ends_with() -> None:
    serial = play(programs.serial, stop_value=60)
    *before, last = [reward for _, _, reward in serial.history]
    assert max(before) < 60 <= last
    assert serial.history[-1][1] == serial.envstep
    one_round_more = play(programs.serial, max_iterations=serial.envstep // 8 + 1)
    split = play(programs.decoupled, stop_value=60)
    expected = {"train_iter": split.learner.train_iter, "envstep": split.envstep}
    assert split.ends_with_what_it_saves() == expected
    assert split.history == serial.history
    assert split.weights == one_round_more.weights != serial.weights

    cfg.policy.eval.evaluator.stop_value = 60
    (made,) = Parallel.runner(n_parallel_workers=1, topology="star")(programs.decoupled)
    assert Played(made).weights == split.weights


def test_in_async_mode_the_task_ends_with_what_it_saves() -> None:
    played = play(programs.magic, stop_value=60, async_mode=True)
    assert played.history[-1][2] >= 60
    played.ends_with_what_it_saves()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_ctx_program_solves_cartpole_and_stops_by_itself(seed: int) -> None:
    cfg.seed = seed
    played = Played(programs.decoupled(max_iterations=1_000))
    assert played.history[-1][2] >= 195
    assert played.envstep < 8_000
