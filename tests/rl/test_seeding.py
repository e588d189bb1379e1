import numpy as np
import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state, spawn_seeds


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
def test_a_generator_continues_from_a_loaded_state(seed, draws):
    rng, other = make_rng(seed, "a"), make_rng(0, "b")
    rng.integers(0, 7, size=draws, dtype=np.uint32)
    set_rng_state(other, rng_state(rng))
    assert rng.integers(0, 7, size=9, dtype=np.uint32).tolist() == (
        other.integers(0, 7, size=9, dtype=np.uint32).tolist()
    )
    with pytest.raises(CheckpointError, match=r"six words"):
        set_rng_state(rng, np.zeros(5, dtype=np.uint64))
