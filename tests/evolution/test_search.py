"""Search spaces: drawing and mutating values, and invalid searches."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ding_lite.errors import ConfigError
from ding_lite.evolution import Search, choice, integer, log_uniform, uniform
from ding_lite.rl import DQNConfig, IMPALAConfig, PPOConfig, SACConfig


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), low=st.floats(1e-6, 1.0), factor=st.floats(1.001, 1e4))
def test_no_value_ever_leaves_its_bounds(seed: int, low: float, factor: float) -> None:
    rng, high = np.random.default_rng(seed), low * factor
    for parameter in (uniform(low, high), log_uniform(low, high), uniform(-high, -low)):
        value: Any = parameter.draw(rng)
        bounds: Any = parameter.examples()
        for _ in range(20):
            assert min(bounds) <= value <= max(bounds)
            value = parameter.mutate(value, rng)


def test_whole_numbers_stay_whole_and_always_move() -> None:
    rng, parameter = np.random.default_rng(0), integer(1, 4)
    value, seen = parameter.draw(rng), set()
    for _ in range(100):
        before, value = value, parameter.mutate(value, rng)
        assert type(value) is int
        assert value != before
        seen.add(value)
    assert seen == {1, 2, 3, 4}


def test_all_orders_of_magnitude_are_equally_likely_in_a_logarithmic_range() -> None:
    rng = np.random.default_rng(0)
    drawn = np.array([log_uniform(1e-4, 1e-2).draw(rng) for _ in range(4_000)], np.float64)
    assert np.mean(drawn < 1e-3) == pytest.approx(0.5, abs=0.03)


def test_a_mutation_multiplies_by_its_factors_and_turns_at_a_bound() -> None:
    rng, parameter = np.random.default_rng(0), uniform(1.0, 8.0, grow=2.0, shrink=0.5)
    assert {parameter.mutate(2.0, rng) for _ in range(50)} == {4.0, 1.0}
    assert {parameter.mutate(8.0, rng) for _ in range(50)} == {4.0}
    assert {parameter.mutate(1.0, rng) for _ in range(50)} == {2.0}


def test_a_bound_that_is_written_as_an_int_is_a_float() -> None:
    """An int would be taken for a setting of whole numbers when the search is checked again."""
    rng = np.random.default_rng(0)
    for parameter in (log_uniform(1, 2), uniform(1, 2)):
        for value in (parameter.draw(rng), *(parameter.mutate(at, rng) for at in (1.1, 1.9))):
            assert type(value) is float
    Search(alpha=uniform(0.1, 1.0)).check(SACConfig(alpha=1, learn_alpha=False))


def test_zero_and_numbers_below_it_move_too() -> None:
    rng = np.random.default_rng(0)
    assert {uniform(0.0, 1.0).mutate(0.0, rng) for _ in range(20)} == {0.1}
    assert {uniform(-2.0, -0.5).mutate(-1.0, rng) for _ in range(20)} == {-1.2, -0.8}


def test_a_choice_becomes_another_one() -> None:
    rng, parameter = np.random.default_rng(0), choice("huber", "mse")
    assert {parameter.draw(rng) for _ in range(30)} == {"huber", "mse"}
    assert {parameter.mutate("huber", rng) for _ in range(10)} == {"mse"}
    of_numpy = choice(None, *np.arange(2), np.float64(0.5))
    assert json.dumps([*of_numpy.examples()]) == "[null, 0, 1, 0.5]"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: integer(8, 4), "`low` is 8 and `high` 4"),
        (lambda: integer(1.5, 4), "`low` is 1.5"),  # type: ignore[arg-type]
        (lambda: log_uniform(0.0, 1.0), "above 0"),
        (lambda: uniform(0.0, math.inf), "finite"),
        (lambda: uniform(0.0, 1.0, grow=0.9), "around 1"),
        (lambda: choice("huber"), "two different values"),
        (lambda: choice([16, 32]), "one by one"),  # type: ignore[arg-type]
        (lambda: Search(lr=1e-3), "`lr=log_uniform(low, high)`"),  # type: ignore[arg-type]
        (lambda: Search(learn_every=integer(0, 4)), "`learn_every` is 0"),
    ],
)
def test_an_invalid_search_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert said in str(caught.value)


DQN, SAC, PPO = DQNConfig(), SACConfig(), PPOConfig()


@pytest.mark.parametrize(
    ("config", "search", "said"),
    [
        (DQN, Search(learning_rate=uniform(0.1, 1.0)), 'Unknown key "learning_rate".'),
        (DQN, Search(batchsize=integer(8, 64)), 'Did you mean "batch_size"?'),
        (DQN, Search(learn_evry=integer(8, 64)), 'Did you mean "learn_every"?'),
        (DQN, Search(hidden=integer(8, 64)), "an architecture mutation changes it"),
        (DQN, Search(seed=integer(8, 64)), "each agent has its own"),
        (DQN, Search(gamma=uniform(0.9, 0.99)), "with `n_step=1` only"),
        (DQN, Search(lr=uniform(-1.0, 1.0)), "`lr` is -1.0"),
        (DQN, Search(batch_size=uniform(8, 64)), "search it with `integer(low, high)`"),
        (DQN, Search(loss=integer(1, 2)), "of another kind"),
        (DQN, Search(dueling=choice(True, False)), "have nothing to inherit"),
        (DQN, Search(double=uniform(0.0, 1.0)), "search it with `choice(True, False)`"),
        (DQN, Search(loss=choice("huber", "hubert")), "'hubert'"),
        (SAC, Search(alpha=uniform(0.1, 1.0)), "first value of what is learned"),
        (PPO, Search(log_std_start=uniform(-1.0, 0.0)), "first value of what is learned"),
        (PPO, Search(memory_size=integer(8, 64)), "different memories have nothing to inherit"),
    ],
)
def test_what_a_policy_lacks_or_cannot_change_is_not_searched(config, search, said):
    with pytest.raises(ConfigError) as caught:
        search.check(config)
    assert said in str(caught.value)


def test_settings_of_a_policy_can_be_searched() -> None:
    Search(gamma=uniform(0.9, 0.99), learn_every=integer(1, 8)).check(DQNConfig(n_step=1))
    Search(loss=choice("huber", "mse"), double=choice(True, False)).check(DQNConfig())
    Search(max_grad_norm=uniform(0.5, 10.0)).check(DQNConfig())
    both = Search(actor_lr=log_uniform(1e-4, 1e-2), alpha=uniform(0.1, 1.0))
    both.check(SACConfig(learn_alpha=False))
    Search(alpha=uniform(0.1, 1.0), learn_alpha=choice(True, False)).check(SACConfig())
    clips = Search(rho_clip=uniform(0.4, 2.0), c_clip=uniform(0.1, 0.4), lr=uniform(0.1, 0.2))
    clips.check(IMPALAConfig())


def test_values_that_do_not_go_together_cannot_be_searched_together() -> None:
    search = Search(lr=uniform(0.1, 0.2), rho_clip=uniform(0.5, 2.0), c_clip=uniform(0.1, 0.9))
    with pytest.raises(ConfigError, match=r"rho_clip=0.5, c_clip=0.9.*must be at least 0.9"):
        search.check(IMPALAConfig())
