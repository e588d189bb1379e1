import numpy as np
import pytest

from ding_lite.errors import ConfigError
from ding_lite.rl.formulas.exploration import add_noise, epsilon_ladder


def test_noise_has_a_deviation_for_each_action_and_is_clipped():
    noise = np.array([0.0, 9.0], dtype=np.float32)
    best_NA = np.zeros((2, 1), dtype=np.float32)
    rng = np.random.default_rng(0)
    assert add_noise(best_NA, noise, rng=rng).tolist() == [[0.0], [-1.0]]


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
