"""Measurements of `mode="auto"`, on a clock that only the environment advances."""

import itertools
import logging
from typing import Any, cast

import numpy as np
import pytest

import tests.rl.partly
import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite.rl import make_envs
from ding_lite.rl.envs.choice import choose_mode, seconds_of_a_step
from ding_lite.rl.envs.sources import EnvLoop
from ding_lite.testing.probes import Endless, OneReward


class Slow(Endless):
    def __init__(self, clock, durations):
        super().__init__()
        self.clock, self.durations = clock, itertools.cycle(durations)

    def play(self, action):
        self.clock.advance(next(self.durations))
        return super().play(action)


SPEC = make_envs(Endless, 1).spec


def seconds(env, clock):
    loop = EnvLoop([env], seeds=[0], spec=SPEC)
    return seconds_of_a_step(loop, SPEC, 1, clock=clock)


@pytest.mark.parametrize(
    ("step_s", "num_envs", "num_cores", "mode"),
    [
        (10e-6, 8, 8, "sync"),
        (10e-6, 64, 2, "sync"),
        (200e-6, 8, 2, "sync"),
        (1e-3, 8, 2, "async"),
        (1e-3, 8, 1, "sync"),
        (1e-3, 1, 8, "sync"),
        (1.0, 2, 2, "async"),
        (100e-6, 64, 16, "async"),
    ],
)
def test_processes_are_chosen_if_they_are_clearly_faster(clock, step_s, num_envs, num_cores, mode):
    env = Slow(clock, [step_s])
    chosen, why = choose_mode(env, SPEC, num_envs, num_cores=num_cores, clock=clock)
    assert chosen == mode
    if num_envs > 1 and num_cores > 1:
        assert f"an env step takes {step_s * 1e6:.0f} us" in why
    else:
        assert "only one" in why or "one processor core" in why


def test_a_disturbed_measurement_is_still_right(clock):
    env = Slow(clock, [20e-6, 20e-6, 5e-3, 20e-6, 20e-6])
    assert seconds(env, clock) == pytest.approx(20e-6)


@pytest.mark.parametrize(("step_s", "most"), [(10e-6, 1e-3), (5e-3, 0.05), (2.0, 10.0)])
def test_a_measurement_is_short(clock, step_s, most):
    seconds(Slow(clock, [step_s]), clock)
    assert clock.now() <= most


def test_episodes_that_end_are_begun_again_while_measuring(clock):
    class CountsResets(OneReward):
        num_resets = 0

        def reset(self, *, seed=None, options=None):
            self.num_resets += 1
            return super().reset(seed=seed)

    env = CountsResets()
    seconds(env, clock)
    assert env.num_resets > 30


class ArrayProgram:
    """Steps all environments at once, in a given time."""

    def __init__(self, clock, step_s, *, length=20):
        self.clock, self.step_s, self.length = clock, step_s, length
        self.num_steps = self.num_resets = 0

    def reset(self):
        return np.zeros((8, 1))

    def step(self, action):
        self.clock.advance(self.step_s)
        self.num_steps += 1
        ended = np.full(len(action), self.num_steps % self.length == 0)
        return np.zeros((len(action), 1)), np.zeros(len(action)), ended, np.zeros_like(ended)

    def reset_where(self, done_N):
        assert done_N.all()
        self.num_resets += 1
        self.clock.advance(1.0)
        return np.zeros((len(done_N), 1))


@pytest.mark.parametrize(
    ("step_s", "native_s", "num_envs", "num_cores", "mode"),
    [
        (10e-6, 30e-6, 8, 2, "native"),
        (10e-6, 30e-6, 8, 1, "native"),
        (10e-6, 30e-6, 2, 2, "sync"),
        (10e-6, 30e-6, 2, 1, "sync"),
        (10e-6, 1e-6, 1, 2, "sync"),
        (5e-3, 30e-3, 8, 8, "async"),
        (5e-3, 6e-3, 8, 8, "native"),
    ],
)
def test_an_array_program_is_chosen_where_it_is_faster(
    clock, step_s, native_s, num_envs, num_cores, mode
):
    env, native = Slow(clock, [step_s]), cast(Any, ArrayProgram(clock, native_s))
    chosen, why = choose_mode(env, SPEC, num_envs, num_cores=num_cores, native=native, clock=clock)
    assert chosen == mode
    if num_envs > 1:  # without the resets, of a second each
        assert f"{native_s * 1e6:.0f} us as one array program" in why
    if native_s == 30e-6 and num_envs == 8:
        assert native.num_resets >= 3


def test_the_choice_is_logged(caplog):
    caplog.set_level(logging.INFO, logger="ding_lite.rl.envs.choice")
    for env_id, count, mode, why in (
        ("probe/Counter-v0", 8, "sync", "an env step t"),
        ("CartPole-v1", 64, "native", "an env step"),
        ("probe/DisabledCounters-v0", 2, "native", "there"),
    ):
        assert make_envs(env_id, count).mode == mode
        told = f"stepping {count} environments of {env_id} in mode {mode}: {why}"
        assert told in caplog.text
    assert "us as one array program" in caplog.text


@pytest.mark.parametrize("action", ["choice", "choices"])
def test_only_legal_actions_are_measured(action):
    """The environment raises for others."""
    how = {"masked": True, "action": action}
    with make_envs("partly/Partly-v0", 2, env_args=how) as envs:
        envs.step(envs.random_actions())
