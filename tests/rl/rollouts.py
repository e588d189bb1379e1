"""Random rollouts like those of environments."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Dict

from ding_lite.rl import Rollout


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
    """Draw observations of an environment's kind."""
    if isinstance(spec.obs_space, Dict):
        spec.obs_space.seed(int(rng.integers(2**20)))
        samples = [spec.obs_space.sample() for _ in range(int(np.prod(shape)))]
        if not samples:
            return np.empty((*shape, *spec.obs_shape), dtype=spec.obs_dtype)
        tree = {key: np.stack([one[key] for one in samples]) for key in spec.obs_space.spaces}
        return spec.pack(tree).reshape(*shape, *spec.obs_shape)
    if spec.obs_dtype is np.uint8:
        return rng.integers(0, 256, (*shape, *spec.obs_shape), dtype=np.uint8)
    return rng.normal(size=(*shape, *spec.obs_shape)).astype(np.float32)


def draw_actions(rng, spec, shape):
    """Draw actions of an environment's kind, some numbers out of bounds."""
    if spec.num_actions is not None:
        return rng.integers(0, spec.num_actions, shape)
    return rng.normal(size=(*shape, *spec.action_shape)).astype(np.float32) * 2.0
