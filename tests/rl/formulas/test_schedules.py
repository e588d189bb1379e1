import math

import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import ConfigError
from ding_lite.rl import constant, exponential, linear
from ding_lite.rl_utils import get_epsilon_greedy_fn


def test_a_linear_schedule_is_straight_and_then_constant():
    epsilon = linear(1.0, 0.2, steps=100)
    assert [epsilon(x) for x in (-5, 0, 25, 50, 100, 1e9)] == pytest.approx(
        [1, 1, 0.8, 0.6, 0.2, 0.2]
    )


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 10**6), st.integers(0, 10**7))
def test_schedules_stay_between_their_ends(start, end, length, env_step):
    low, high = min(start, end), max(start, end)
    for schedule in (linear(start, end, steps=length), exponential(start, end, decay=length)):
        assert low - 1e-9 <= schedule(env_step) <= high + 1e-9
    assert constant(start)(env_step) == start


def test_the_doorway_has_the_formulas_of_di_engine():
    exp = get_epsilon_greedy_fn(0.95, 0.1, 10_000, "exp")
    straight = get_epsilon_greedy_fn(0.95, 0.1, 10_000, type_="linear")
    for x in (0, 1, 5_000, 10_000, 30_000):
        assert exp(x) == pytest.approx((0.95 - 0.1) * math.exp(-x / 10_000) + 0.1)
        assert straight(x) == pytest.approx(0.1 if x >= 10_000 else 0.95 - 0.85 * x / 10_000)
    with pytest.raises(ConfigError, match=r"`type_` is 'exponential'"):
        get_epsilon_greedy_fn(0.95, 0.1, 10_000, "exponential")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"`decay` is 0"):
        get_epsilon_greedy_fn(0.95, 0.1, 0)
