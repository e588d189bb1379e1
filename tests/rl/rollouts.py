"""Random batches and rollouts like those of environments; a first action is illegal, if any is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete

import ding_lite.testing.probes  # noqa: F401 registers the environments
from ding_lite import Task, middleware as mw
from ding_lite.rl import (
    ActorCritic,
    EnvSpec,
    NStep,
    ReplayBuffer,
    Rollout,
    Sequences,
    Transitions,
    make_envs,
    mean_return,
)
from ding_lite.rl.batch import PrioritizedTransitions
from ding_lite.rl.protocols import LearnsFromSequences

CARTPOLE, PENDULUM = (make_envs(name, 1).spec for name in ("CartPole-v1", "Pendulum-v1"))
SCREEN = EnvSpec(
    env_id="x", obs_space=Box(0, 255, (12, 12, 3), dtype=np.uint8), action_space=Discrete(2)
)


def draw_batch(seed, *, spec, size=32):
    rng = np.random.default_rng(seed)
    obs, next_obs = (draw_obs(rng, spec, (size,)) for _ in range(2))
    terminated, truncated = rng.random((2, size)) < 0.3
    if spec.num_actions is not None:
        action = rng.integers(spec.has_action_mask, spec.num_actions, size)
    else:
        low, high = spec.action_space.low, spec.action_space.high
        action = rng.uniform(low, high, size=(size, *low.shape)).astype(np.float32)
    reward = rng.normal(scale=2.0, size=size).astype(np.float32)
    num_steps = rng.integers(1, 4, size=size).astype(np.int32)
    columns = obs, action, reward, next_obs, terminated, truncated, num_steps
    return Transitions(*map(torch.from_numpy, columns))


def draw_prioritized(seed, *, spec, size=32):
    plain = draw_batch(seed, spec=spec, size=size)
    weight = torch.from_numpy(np.random.default_rng(seed).random(size).astype(np.float32))
    columns = {name: getattr(plain, name) for name in Transitions.__slots__}
    return PrioritizedTransitions(**columns, weight=weight, serial=np.arange(size))


def lesson(policy, seed, *, size=16):
    """Draw what a policy learns from."""
    rng, spec = np.random.default_rng(seed), policy.spec
    state_size = getattr(policy, "state_size", 0)
    if isinstance(policy, ActorCritic):
        rollout = draw_rollout(seed, spec)
        state = np.full((rollout.num_envs, state_size), 0.1, np.float32)
        return [replace(rollout, state=state) if state_size else rollout]
    if isinstance(policy, LearnsFromSequences):
        state, obs = np.zeros((4, state_size), np.float32), draw_obs(rng, spec, (4, 6))
        action, reward = draw_actions(rng, spec, (4, 5)), rng.normal(size=(4, 5)).astype(np.float32)
        no = np.zeros((4, 5), np.bool_)
        return Sequences(obs, action, reward, no, no, ~no, burn_in=2, state=state)
    return draw_batch(seed, spec=spec, size=size)


def learn_from_random_actions(policy, envs, *, updates, size=64, steps=120):
    """Let a policy learn from random actions in an environment; return it."""
    replay = ReplayBuffer(envs.spec, capacity=2_000)
    n_steps = NStep(policy.n_step, policy.config.gamma, envs.num_envs)
    for _ in range(steps):
        replay.add(n_steps(envs.step(envs.random_actions())))
    for _ in range(updates):
        policy.learn(replay.sample(size))
    return policy


def recalled(policy, *, unroll, steps):
    """Let a policy learn to recall what it has seen; return its mean return."""
    with Task() as task:
        task.use(mw.collect(policy, make_envs("probe/Recall-v0", 16, seed=0), unroll=unroll))
        task.use(mw.train(policy))
        task.run(max_step=steps)
    return mean_return(policy, make_envs("probe/Recall-v0", 16, seed=1), episodes=64)


def draw_rollout(seed, spec, *, num_steps=5, num_envs=3, ends=0.2, version=0):
    """Draw a rollout with ends of every kind.

    Args:
        ends: The share of steps that terminated, and likewise of those that were truncated.
    """
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    terminated, truncated = rng.random((2, *shape)) < ends
    cut_time, cut_env = np.nonzero(truncated & ~terminated)
    return Rollout(
        obs=draw_obs(rng, spec, shape),
        action=draw_actions(rng, spec, shape),
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        log_prob=rng.normal(-0.8, 0.3, size=shape).astype(np.float32),
        last_obs=draw_obs(rng, spec, (num_envs,)),
        cut_time=cut_time,
        cut_env=cut_env,
        cut_obs=draw_obs(rng, spec, (len(cut_time),)),
        version=version,
    )


def draw_obs(rng, spec, shape):
    if isinstance(spec.obs_space, Dict):
        spec.obs_space.seed(int(rng.integers(2**20)))
        samples = [spec.obs_space.sample() for _ in range(int(np.prod(shape)))]
        if not samples:
            return np.empty((*shape, *spec.obs_shape), dtype=spec.obs_dtype)
        tree = {key: np.stack([one[key] for one in samples]) for key in spec.obs_space.spaces}
        return spec.pack(tree).reshape(*shape, *spec.obs_shape)
    if spec.obs_dtype is np.uint8:
        return rng.integers(0, 256, (*shape, *spec.obs_shape), dtype=np.uint8)
    obs = rng.normal(size=(*shape, *spec.obs_shape)).astype(np.float32)
    if spec.has_action_mask:  # all actions but the first are legal
        obs[..., -spec.num_choices :] = np.arange(spec.num_choices) > 0
    return obs


def draw_actions(rng, spec, shape):
    """Draw actions of an environment's kind, some numbers out of bounds."""
    if spec.num_actions is not None:
        return rng.integers(spec.has_action_mask, spec.num_actions, shape)
    if not isinstance(spec.action_space, Box):
        return rng.integers(0, 2, (*shape, *spec.action_shape))
    return rng.normal(size=(*shape, *spec.action_shape)).astype(np.float32) * 2.0
