"""Collecting rollouts, and learning from them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite import middleware as mw
from ding_lite.errors import ConfigError
from ding_lite.rl import A2C, PPO, A2CConfig, PPOConfig, ReplayBuffer, Rollout, make_envs
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.policies.dqn import DQN
from ding_lite.testing import run_step
from tests.middleware.running import run_steps


@pytest.fixture
def a2c(envs: Envs) -> A2C:
    return A2C(envs.spec, A2CConfig(hidden=(16,)))


def rollout_of(policy: Any, envs: Envs, num_steps: int, **values: Any) -> Rollout:
    """Collect a single rollout."""
    ctx, _ = run_step(mw.collect(policy, envs, unroll=num_steps), **values)
    [rollout] = ctx.trajectories
    assert isinstance(rollout, Rollout)
    return rollout


def test_a_rollout_has_the_steps_in_order(a2c: A2C, envs: Envs) -> None:
    twin = a2c.clone()
    ctx, _ = run_step(mw.collect(a2c, envs, unroll=60), env_step=40)
    [rollout] = ctx.trajectories
    assert ctx.env_step == 40 + 4 * 60
    with make_envs("CartPole-v1", 4, seed=0) as twin_envs:
        for time in range(60):
            action, log_prob = twin.explore(twin_envs.obs)
            step = twin_envs.step(action)
            for name in ("obs", "action", "reward", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(rollout, name)[time], getattr(step, name))
            np.testing.assert_array_equal(rollout.log_prob[time], log_prob)
    np.testing.assert_array_equal(rollout.last_obs, step.next_obs)
    assert rollout.terminated.any()
    assert len(rollout.cut_obs) == 0


def test_the_next_rollout_goes_on_where_the_one_before_ended(a2c: A2C, envs: Envs) -> None:
    seen: list[Rollout] = []
    task = run_steps(
        mw.collect(a2c, envs, unroll=2), lambda ctx: seen.extend(ctx.trajectories), steps=40
    )
    ongoing = 0
    for before, after in pairwise(seen):
        goes_on = ~(before.terminated | before.truncated)[-1]
        ongoing += int(goes_on.sum())
        np.testing.assert_array_equal(before.last_obs[goes_on], after.obs[0][goes_on])
    assert 120 < ongoing < 156
    assert task.ctx.env_step == 320


def test_what_episodes_ended_with_that_were_cut_off_is_handed_on() -> None:
    with make_envs("probe/LongCounter-v0", 2, seed=0) as envs:  # ten steps long, and cut after 4
        policy = A2C(envs.spec)
        rollout = rollout_of(policy, envs, 9)
    # The observation counts episodes and steps: an episode that is cut shows its step 4 at the end.
    assert rollout.truncated[:, 0].tolist() == [(time % 4) == 3 for time in range(9)]
    assert rollout.cut_time.tolist() == [3, 3, 7, 7]
    assert rollout.cut_env.tolist() == [0, 1, 0, 1]
    assert rollout.cut_obs.tolist() == [[0.0, 4.0], [0.0, 4.0], [1.0, 4.0], [1.0, 4.0]]
    assert rollout.obs[4].tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_numbers_are_clipped_for_the_envs_and_learned_from_as_they_were_drawn() -> None:
    with make_envs("probe/Pull-v0", 8, seed=0) as envs:  # takes -2 to 3, and shows what it took
        policy = A2C(envs.spec, A2CConfig(log_std_start=1.0))
        rollout = rollout_of(policy, envs, 30)
    assert rollout.action.min() < -2.0
    assert rollout.action.max() > 3.0
    np.testing.assert_array_equal(rollout.obs[1:], rollout.action[:-1].clip(-2.0, 3.0))


def test_a_rollout_says_which_weights_acted(a2c: A2C, envs: Envs) -> None:
    assert rollout_of(a2c, envs, 1).version == 0
    assert rollout_of(a2c, envs, 1, weights_version=12).version == 12


def test_episodes_are_reported_as_with_transitions(a2c: A2C) -> None:
    def rows_of(policy: Any, **how: Any) -> list[dict[str, float]]:
        rows: list[dict[str, float]] = []
        with make_envs("CartPole-v1", 4, seed=0) as envs:
            run_steps(
                mw.collect(policy, envs, **how),
                lambda ctx: rows.append(dict(ctx.metrics)),
                steps=30,
            )
        return rows

    rows = rows_of(a2c.clone(), unroll=10)
    assert rows == rows_of(a2c.clone(), steps=40)
    assert rows[-1]["episodes"] > 20


# -- train ---------------------------------------------------------------------------------


def test_every_update_of_a_rollout_is_counted(envs: Envs) -> None:
    policy = PPO(envs.spec, PPOConfig(hidden=(16,), epochs=3, batch_size=10))
    task = run_steps(mw.collect(policy, envs, unroll=10), mw.train(policy), steps=2)
    assert task.ctx.train_iter == policy.train_iter == 2 * 3 * 4
    assert task.ctx.train_data is task.ctx.trajectories
    assert task.ctx.metrics["loss"] == task.ctx.train_output["loss"]


@pytest.mark.parametrize("values", [{}, {"trajectories": []}])
def test_nothing_is_learned_in_a_step_that_has_brought_nothing(a2c, values) -> None:
    before = a2c.weights()
    ctx, _ = run_step(mw.train(a2c), **values)
    assert ctx.train_iter == 0
    assert "train_output" not in ctx
    assert all(torch.equal(tensor, before[name]) for name, tensor in a2c.weights().items())


def test_nothing_is_learned_while_others_are_waited_for(a2c: A2C, envs: Envs) -> None:
    rollout = rollout_of(a2c, envs, 4)
    ctx, _ = run_step(mw.train(a2c), trajectories=[rollout], warming_up=True)
    assert ctx.train_iter == a2c.train_iter == 0


def test_a_policy_without_a_batch_size_is_asked_for_one(envs: Envs, replay: ReplayBuffer) -> None:
    class Plain(DQN):
        config: Any

    policy = Plain(envs.spec)
    mw.train(policy, replay)
    policy.config = object()
    with pytest.raises(ConfigError, match=r"Plain says nothing of how many .* `batch_size`"):
        mw.train(policy, replay)
    mw.train(policy, replay, batch_size=8)
