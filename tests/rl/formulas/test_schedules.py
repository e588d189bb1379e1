import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.rl import constant, exponential, linear
from ding_lite.rl.formulas.exploration import epsilon_greedy, epsilon_ladder
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state, spawn_seeds
from ding_lite.rl_utils import get_epsilon_greedy_fn


def test_linear_goes_straight_and_stays():
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


def test_exploration_draws_every_action():
    greedy = np.zeros(3_000, dtype=np.int64)
    drawn = epsilon_greedy(greedy, 1.0, num_actions=3, rng=np.random.default_rng(0))
    assert np.bincount(drawn, minlength=3) == pytest.approx([1_000] * 3, abs=150)


def test_streams_of_one_seed_are_independent():
    assert make_rng(0, "a").random() == make_rng(0, "a").random()
    assert make_rng(0, "a").random() != make_rng(0, "b").random()
    assert make_rng(0, "a").random() != make_rng(1, "a").random()
    seeds = [seed for start in range(50) for seed in spawn_seeds(start, "environments", count=8)]
    assert len(set(seeds)) == 400
    for wrong in (-1, 0.5, True, None):
        with pytest.raises(ConfigError, match=r"`seed` is"):
            make_rng(wrong, "a")  # type: ignore[arg-type]


@given(st.integers(0, 2**64), st.integers(0, 20))
def test_a_generator_goes_on_where_its_state_was_taken(seed, draws):
    rng, other = make_rng(seed, "a"), make_rng(0, "b")
    rng.integers(0, 7, size=draws, dtype=np.uint32)
    set_rng_state(other, rng_state(rng))
    assert rng.integers(0, 7, size=9, dtype=np.uint32).tolist() == (
        other.integers(0, 7, size=9, dtype=np.uint32).tolist()
    )
    with pytest.raises(CheckpointError, match=r"six words"):
        set_rng_state(rng, np.zeros(5, dtype=np.uint64))


class Place:
    """The place of a node among collectors."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def __len__(self) -> int:
        return self.size


def test_collectors_explore_at_rates_from_high_to_low() -> None:
    shares = [epsilon_ladder(Place(rank, 8))(0) for rank in range(8)]
    assert shares == pytest.approx([0.4 ** (1 + rank) for rank in range(8)])
    assert epsilon_ladder(Place(1, 2), base=0.5, power=2.0)(10**6) == pytest.approx(0.125)
    assert epsilon_ladder(Place(0, 1))(0) == 0.4


def test_collectors_may_all_begin_with_random_actions() -> None:
    high, low = (epsilon_ladder(Place(rank, 2), power=1.0, steps=1_000) for rank in (0, 1))
    assert [high(k) for k in (0, 500, 1_000, 2_000)] == pytest.approx([1.0, 0.7, 0.4, 0.4])
    assert [low(k) for k in (0, 500, 1_000, 2_000)] == pytest.approx([1.0, 0.58, 0.16, 0.16])
    with pytest.raises(ConfigError, match="`steps` is -1"):
        epsilon_ladder(Place(0, 1), steps=-1)
