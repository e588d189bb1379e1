"""Batches that are the same for the same number, and what they are learned by."""

from typing import Any

import numpy as np

from ding_lite.rl import Transitions, make_envs

CONFIG: Any = {"hidden": (8,), "n_step": 1, "batch_size": 16}
SPEC = make_envs("CartPole-v1", 1).spec


def batch_of(seed, size=16):
    rng = np.random.default_rng(seed)
    nothing = np.zeros(size, bool)
    return Transitions(
        obs=rng.normal(size=(size, 4)).astype(np.float32),
        action=rng.integers(0, 2, size),
        reward=rng.normal(size=size).astype(np.float32),
        next_obs=rng.normal(size=(size, 4)).astype(np.float32),
        terminated=nothing,
        truncated=nothing,
        num_steps=np.ones(size, np.int32),
    )


def digest(policy):
    return float(sum(w.double().sum() for w in policy.weights().values()))
