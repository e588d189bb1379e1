"""Settings of training by name, and what A2C, PPO and IMPALA make of theirs."""

from __future__ import annotations

from typing import Any

import pytest

import ding_lite
from ding_lite.errors import ConfigError
from ding_lite.recipes import load_policy
from ding_lite.recipes.choices import Choices
from ding_lite.recipes.plan import make_plan
from ding_lite.recipes.train_config import OffPolicyConfig, OnPolicyConfig, ShortRolloutConfig
from ding_lite.rl import A2C, IMPALA, PPO
from ding_lite.rl.checkpoint.save_load import load_checkpoint

QUICK: dict[str, Any] = {"quiet": True, "max_env_steps": 160, "hidden": (8,), "num_envs": 32}
"""So many environments that no episode ends, and no curve is drawn, which takes longest."""
KINDS: dict[str, type[Any]] = {"a2c": A2C, "ppo": PPO, "impala": IMPALA}


@pytest.mark.parametrize("name", KINDS)
def test_each_leaves_a_whole_run_that_can_be_loaded_again(name: str) -> None:
    result = ding_lite.train(name, "CartPole-v1", unroll=5, **QUICK)
    assert type(result.policy) is KINDS[name]
    assert result.numbers["env_steps"] == 160
    updates = {"a2c": 1, "ppo": 8, "impala": 1}[name]
    assert result.numbers["train_iter"] == updates
    saved = load_checkpoint(result.directory / "checkpoint")
    assert saved.state.keys() == {"policy", "envs", "eval_envs", "task"}
    policy = load_policy(result.directory)
    assert type(policy) is KINDS[name]
    weights = result.policy.weights()
    assert all(bool((value == weights[name]).all()) for name, value in policy.weights().items())


def test_continuous_actions_and_images_are_trained_too() -> None:
    assert ding_lite.train("ppo", "Pendulum-v1", **QUICK).numbers["train_iter"] > 0
    more: dict[str, Any] = {"frame_stack": 2, "torso": "small"}
    assert (
        ding_lite.train("impala", "ding_lite/Catch-v0", **QUICK, **more).numbers["train_iter"] > 0
    )


def test_a_policy_that_learns_once_has_shorter_rollouts() -> None:
    assert make_plan("a2c", "FrozenLake-v1", {}, Choices()).config == ShortRolloutConfig()
    assert make_plan("ppo", "FrozenLake-v1", {}, Choices()).config == OnPolicyConfig()
    assert ShortRolloutConfig().steps_per_update(4) < OnPolicyConfig().steps_per_update(4) == 64
    with pytest.raises(ConfigError, match="`unroll`"):
        OnPolicyConfig(unroll=0)


@pytest.mark.parametrize(
    ("max_env_steps", "expected"),
    [(1_000, 200), (400_000, 200), (1_000_000, 500), (20_000_000, 10_000), (10**10, 10_000)],
)
def test_a_long_run_writes_fewer_rows_unless_their_period_is_given(max_env_steps, expected) -> None:
    assert OffPolicyConfig().row_every(max_env_steps) == expected
    assert OffPolicyConfig(log_every=8).row_every(max_env_steps) == 8


def test_steps_are_as_many_as_updates_need() -> None:
    def steps(ratio: float, num_envs: int) -> int:
        return OffPolicyConfig(update_ratio=ratio).steps_per_update(num_envs)

    assert [steps(1.0, 8), steps(0.125, 8), steps(0.25, 1), steps(1 / 16, 8)] == [8, 8, 4, 16]
    assert [steps(4.0, 8), steps(1 / 3, 2), steps(0.1, 3)] == [8, 4, 12]


@pytest.mark.parametrize(
    ("ratio", "num_envs"), [(0.75, 1), (0.6, 1), (1.5, 1), (0.19, 8), (0.4, 4)]
)
def test_updates_are_as_many_as_the_ratio_asks(ratio: float, num_envs: int) -> None:
    result = ding_lite.train(
        "dqn", "CartPole-v1", max_env_steps=600, warmup=100, batch_size=2, hidden=(4,), quiet=True,
        update_ratio=ratio, num_envs=num_envs, target=500.0,
    )  # fmt: skip
    steps = result.numbers["env_steps"] - result.numbers.get("eval_env_steps", 0)
    assert result.numbers["train_iter"] == pytest.approx(ratio * (steps - 100), abs=2 + ratio)
