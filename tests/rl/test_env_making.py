"""`mode="auto"` measures; here on a clock that only the environment moves."""

import logging

import pytest

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite.rl import make_envs
from ding_lite.rl.env_making import NATIVE_FROM, choose_mode, seconds_of_a_step
from ding_lite.testing import ManualClock
from ding_lite.testing.probes import Endless, OneReward


class Slow(Endless):
    """Takes as long for each step as it is told to."""

    def __init__(self, clock, durations):
        super().__init__()
        self.clock = clock
        self.durations = durations
        self.num_steps = 0

    def play(self, action):
        self.clock.advance(self.durations[self.num_steps % len(self.durations)])
        self.num_steps += 1
        return super().play(action)


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
def test_processes_are_chosen_where_they_clearly_pay(clock, step_s, num_envs, num_cores, mode):
    env = Slow(clock, [step_s])
    choice = choose_mode(env, num_envs, num_cores=num_cores, clock=clock)
    assert choice.mode == mode
    if num_envs > 1 and num_cores > 1:
        assert f"an env step takes {step_s * 1e6:.0f} us" in choice.why
    else:
        assert "only one" in choice.why or "one processor core" in choice.why


def test_a_disturbed_measurement_is_still_right(clock):
    env = Slow(clock, [20e-6, 20e-6, 5e-3, 20e-6, 20e-6])
    assert seconds_of_a_step(env, clock=clock) == pytest.approx(20e-6)


def test_a_measurement_is_short(clock):
    for step_s, most in [(10e-6, 1e-3), (5e-3, 0.05), (2.0, 10.0)]:
        seconds_of_a_step(Slow(clock := ManualClock(), [step_s]), clock=clock)
        assert clock.now() <= most


def test_episodes_that_end_are_begun_again_while_measuring(clock):
    class CountsResets(OneReward):
        num_resets = 0

        def reset(self, *, seed=None, options=None):
            self.num_resets += 1
            return super().reset(seed=seed)

    env = CountsResets()
    seconds_of_a_step(env, clock=clock)
    assert env.num_resets > 30


def test_what_is_chosen_is_said(caplog):
    with caplog.at_level(logging.INFO, logger="ding_lite.rl.envs"):
        assert make_envs("probe/Counter-v0", 8).mode == "sync"
        assert make_envs("CartPole-v1", 8).mode == "native"
    assert "stepping 8 environments of probe/Counter-v0 in mode sync: an env step t" in caplog.text
    assert "stepping 8 environments of CartPole-v1 in mode native: there is a pr" in caplog.text


@pytest.mark.parametrize(
    ("num_envs", "mode"), [(1, "sync"), (NATIVE_FROM - 1, "sync"), (NATIVE_FROM, "native")]
)
def test_an_array_program_is_for_many(num_envs, mode):
    assert make_envs("CartPole-v1", num_envs).mode == mode
