"""Normalisation of rewards by the size of discounted returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite import Task, middleware as mw
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.rl import PPO, load_checkpoint, make_envs
from ding_lite.rl.checkpoint.save_load import save_checkpoint
from ding_lite.rl.reward_norm import RewardNorm
from tests.rl.rollouts import draw_rollout


def plain_scale(rewards: Any, ended: Any, gamma: float) -> float:
    """Return 1 over the standard deviation of the discounted sums, each computed from its terms."""
    sums = []
    for rewards_T, ended_T in zip(rewards.T, ended.T, strict=True):
        for time in range(len(rewards_T)):
            ends = [before + 1 for before in range(time) if ended_T[before]]
            begin = max(ends, default=0)
            sums.append(sum(gamma ** (time - k) * rewards_T[k] for k in range(begin, time + 1)))
    return float(1.0 / np.std(sums))


def test_the_scale_is_that_of_discounted_sums_within_episodes() -> None:
    rng = np.random.default_rng(0)
    rewards, ended = 100.0 * rng.normal(size=(40, 3)), rng.random((40, 3)) < 0.1
    norm = RewardNorm(3, gamma=0.9)
    assert norm.scale == 1.0
    for time in range(40):
        norm.update(rewards[time], ended[time])
    assert norm.scale == pytest.approx(plain_scale(rewards, ended, 0.9), rel=1e-5)


def test_environments_that_collect_on_another_node_are_refused() -> None:
    norm = RewardNorm(2, gamma=0.9)
    rollout = draw_rollout(0, make_envs("CartPole-v1", 1).spec)
    with pytest.raises(ConfigError, match="have made no env step on this node"):
        norm(rollout)
    norm.update(np.ones(2, np.float32), np.zeros(2, np.bool_))
    resumed = RewardNorm(2, gamma=0.9)
    resumed.load_state_dict(norm.state_dict())
    assert resumed(rollout).reward.shape == rollout.reward.shape


def test_rewards_that_never_differ_stay_as_they_are() -> None:
    norm = RewardNorm(2, gamma=0.9)
    norm.update(np.full(2, 7.0), np.ones(2, np.bool_))
    norm.update(np.full(2, 7.0), np.zeros(2, np.bool_))
    assert norm.scale == 1.0


def test_environments_measure_their_rewards_and_hand_them_on_as_before(tmp_path: Any) -> None:
    def play(envs: Any, steps: int) -> list[Any]:
        rng = np.random.default_rng(1)
        return [envs.step(rng.integers(2, size=3)) for _ in range(steps)]

    envs, plain = (make_envs("CartPole-v1", 3, mode="sync", reward_scale=7.0) for _ in range(2))
    norm = envs.measure_rewards(gamma=0.9)
    assert envs.measure_rewards(gamma=0.9) is norm
    with pytest.raises(ConfigError, match=r"`gamma` is 0\.5, .* rewards with 0\.9 already"):
        envs.measure_rewards(gamma=0.5)
    seen, expected = play(envs, 60), play(plain, 60)
    for one, other in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(one.reward, other.reward)
    rewards = np.stack([step.reward for step in seen])
    ended = np.stack([step.terminated | step.truncated for step in seen])
    assert ended.any()
    assert norm.scale == pytest.approx(plain_scale(rewards, ended, 0.9), rel=1e-5)

    save_checkpoint(tmp_path, envs.state_dict())
    saved = load_checkpoint(tmp_path).state
    resumed = make_envs("CartPole-v1", 3, mode="sync", reward_scale=7.0)
    with pytest.raises(CheckpointError, match=r"with normalisation of rewards, and .* without it"):
        resumed.load_state_dict(saved)
    again = resumed.measure_rewards(gamma=0.9)
    resumed.load_state_dict(saved)
    play(envs, 9), play(resumed, 9)
    assert again.scale == norm.scale
    with pytest.raises(CheckpointError, match="without normalisation of rewards"):
        resumed.load_state_dict(plain.state_dict())
    resumed.reset()
    resumed.step(np.zeros(3, np.int64))
    assert again.state_dict()["sum"].tolist() == [7.0] * 3


def test_rollouts_are_normalised_when_they_are_learned_from() -> None:
    with make_envs("Pendulum-v1", 2) as envs:
        policy, twin = PPO(envs.spec), PPO(envs.spec)
        norm = envs.measure_rewards(gamma=policy.gamma)
        for _ in range(20):
            envs.step(envs.random_actions())
        scale = norm.scale
        rollout = draw_rollout(0, envs.spec, num_steps=6)
        with Task() as task:
            task.use(lambda ctx: setattr(ctx, "trajectories", [rollout]))
            task.use(mw.train(policy, normalize_rewards=envs))
            task.run(max_step=1)
    [learned] = task.ctx.train_data
    np.testing.assert_allclose(learned.reward, rollout.reward * scale, rtol=1e-6)
    assert scale < 0.5
    assert task.ctx.train_output == twin.learn([learned])
