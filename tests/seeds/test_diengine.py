"""The programs of the document about tasks, from a plain loop to async mode, by what they do."""

from __future__ import annotations

import contextlib
import copy
import math
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from ding_lite.framework import Parallel
from ding_lite.nest import leaves, path_name
from ding_lite.rl import Checkpoint, load_checkpoint
from tests.seeds import programs
from tests.seeds.diengine import BaseLearner, BaseSerialEvaluator, SampleCollector, cfg, quick_start

Program = Callable[..., Any]
PROGRAMS: list[Program] = [
    programs.serial,
    programs.closure,
    programs.split,
    programs.decoupled,
    programs.magic,
]
GIVE_UP = 10.0
"""Seconds after which a thread that waits for another one lets the test fail."""


class Played:
    """The results of a program that has run."""

    def __init__(self, made: tuple[BaseLearner, SampleCollector, BaseSerialEvaluator]) -> None:
        self.learner, self.collector, self.evaluator = made
        self.folder = self.learner.checkpoints.parent.absolute()
        self.weights = fingerprint(self.learner.policy.state_dict())

    @property
    def rounds(self) -> int:
        """How often it has collected."""
        return self.collector.envstep // int(cfg.policy.collect.collector.n_sample)

    def saved(self, name: str) -> Checkpoint:
        return load_checkpoint(self.folder / "ckpt" / name)


def play(program: Program, **arguments: Any) -> Played:
    cfg.exp_name = program.__name__
    return Played(program(**arguments))


def fingerprint(state: Any) -> dict[str, bytes]:
    """Return every number of a policy's state, bit for bit: networks, optimizer, generator."""
    return {path_name(path): np.asarray(leaf).tobytes() for path, leaf in leaves(state)}


def evaluate_early(*, stop_value: float) -> None:
    cfg.policy.eval.evaluator.update(eval_freq=80, stop_value=stop_value)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Played]]:
    """Run each program until an evaluation reaches 60, for all tests that look at how it ended."""
    before = copy.deepcopy(cfg)
    evaluate_early(stop_value=60)
    with contextlib.chdir(tmp_path_factory.mktemp("stopped")):
        played = {program.__name__: play(program) for program in PROGRAMS}
    yield played
    cfg.update(before)


# -- one algorithm -------------------------------------------------------------------------


def test_all_programs_learn_the_same_bit_for_bit() -> None:
    evaluate_early(stop_value=math.inf)
    serial, *others = [play(program, max_iterations=60) for program in PROGRAMS]

    assert serial.learner.train_iter > 200
    assert serial.collector.envstep == 60 * 8
    assert len(serial.evaluator.history) > 1
    for other in others:
        assert other.weights == serial.weights
        assert other.evaluator.history == serial.evaluator.history
        assert other.collector.envstep == serial.collector.envstep


def test_another_seed_learns_something_else() -> None:
    first = play(programs.decoupled, max_iterations=40)
    cfg.seed = 1
    assert play(programs.decoupled, max_iterations=40).weights != first.weights


def test_the_first_two_programs_stop_before_they_collect_again(stopped) -> None:
    serial, closure = stopped["serial"], stopped["closure"]
    *before, last = [reward for _, _, reward in serial.evaluator.history]
    assert before
    assert max(before) < 60 <= last
    assert closure.weights == serial.weights
    assert closure.evaluator.history == serial.evaluator.history
    assert serial.evaluator.history[-1][1] == serial.collector.envstep


def test_the_split_programs_finish_the_step_in_which_they_stop(stopped) -> None:
    serial, _, *split = stopped.values()
    evaluate_early(stop_value=math.inf)
    one_round_more = play(programs.serial, max_iterations=serial.rounds + 1)
    for played in split:
        assert played.evaluator.history == serial.evaluator.history
        assert played.rounds == serial.rounds + 1
        assert played.weights == one_round_more.weights
        assert played.weights != serial.weights


# -- what they leave on disk ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["serial", "closure", "split"])
def test_what_the_evaluator_saves_is_what_it_has_judged(stopped, name: str) -> None:
    best = stopped[name].saved("ckpt_best")
    train_iter, envstep, _ = stopped[name].evaluator.history[-1]
    assert best.meta == {"train_iter": train_iter, "envstep": envstep}
    assert fingerprint(best.state) == stopped["serial"].weights


@pytest.mark.parametrize("name", ["decoupled", "magic"])
def test_what_the_learner_saves_at_the_end_is_what_it_ends_with(stopped, name: str) -> None:
    played = stopped[name]
    last = played.saved("ckpt")
    expected = {"train_iter": played.learner.train_iter, "envstep": played.collector.envstep}
    assert last.meta == expected
    policy, _, evaluator_env = quick_start()
    policy.load_state_dict(last.state)
    assert fingerprint(policy.state_dict()) == played.weights
    greedy = policy.act(evaluator_env.obs, explore=False)
    np.testing.assert_array_equal(
        greedy, played.learner.policy.act(evaluator_env.obs, explore=False)
    )


def test_each_program_logs_where_its_config_says(stopped) -> None:
    for played in stopped.values():
        assert list((played.folder / "log" / "serial").glob("events.out.tfevents.*"))


# -- magic time ----------------------------------------------------------------------------


def test_the_step_timer_shows_each_middleware_after_each_step(capsys) -> None:
    evaluate_early(stop_value=math.inf)
    play(programs.magic, max_iterations=60)
    tables = capsys.readouterr().err.split("step timer, ")[1:]
    assert [int(table.split()[0]) for table in tables] == list(range(1, 61))
    names = ["evaluate", "collect", "train"]
    assert all([row.split()[0] for row in table.splitlines()[1:4]] == names for table in tables)


class Watcher:
    """A step wrapper that sees each middleware end its way in, and go its way out."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []
        self._changed = threading.Condition()

    def __call__(self, fn: Any) -> Any:
        def watched(ctx: Any) -> Iterator[None]:
            rest = fn(ctx)
            if rest is not None:
                next(rest)
            self._note(ctx.total_step, f"{fn.__name__.strip('_')} is through")
            yield
            self._note(ctx.total_step, "way out")
            if rest is not None:
                next(rest, None)

        return watched

    def wait_for(self, step: int, *events: str) -> None:
        wanted = {(step, event) for event in events}
        with self._changed:
            assert self._changed.wait_for(lambda: wanted <= set(self.seen[-20:]), timeout=GIVE_UP)

    def _note(self, step: int, event: str) -> None:
        with self._changed:
            self.seen.append((step, event))
            self._changed.notify_all()


def test_in_async_mode_a_step_has_one_barrier_and_a_slow_evaluator_delays_nothing(monkeypatch):
    watcher = Watcher()

    class SlowEvaluator(BaseSerialEvaluator):
        """Does not begin before the rest of its step is through."""

        step = -1

        def should_eval(self, train_iter: int) -> bool:
            self.step += 1
            watcher.wait_for(self.step, "collect is through", "train is through")
            return super().should_eval(train_iter)

    monkeypatch.setattr(programs, "StepTimer", lambda print_per_step: watcher)
    monkeypatch.setattr(programs, "BaseSerialEvaluator", SlowEvaluator)
    evaluate_early(stop_value=60)
    played = play(programs.magic, async_mode=True)

    assert played.evaluator.history[-1][2] >= 60
    assert fingerprint(played.saved("ckpt").state) == played.weights
    for step, entries in groupby(watcher.seen, key=lambda entry: entry[0]):
        *way_in, evaluated, out_1, out_2, out_3 = [event for _, event in entries]
        assert sorted(way_in) == ["collect is through", "train is through"], step
        assert evaluated == "evaluate is through"
        assert out_1 == out_2 == out_3 == "way out"


# -- as a whole ----------------------------------------------------------------------------


def test_the_ctx_program_runs_unchanged_as_the_main_of_one_node(stopped) -> None:
    evaluate_early(stop_value=60)
    (made,) = Parallel.runner(n_parallel_workers=1, topology="star")(programs.decoupled)
    assert Played(made).weights == stopped["decoupled"].weights


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_ctx_program_solves_cartpole_and_stops_by_itself(seed: int) -> None:
    cfg.seed = seed
    played = play(programs.decoupled, max_iterations=1_000)

    assert played.evaluator.history[-1][2] >= 195
    assert played.collector.envstep < 8_000
