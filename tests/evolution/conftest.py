"""Fixtures of the tests of evolution."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from ding_lite.evolution.search import Search, integer, log_uniform
from ding_lite.rl.batch import NumpyArray, Transitions
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.spec import EnvSpec


@pytest.fixture(scope="session")
def spec() -> EnvSpec:
    with make_envs("CartPole-v1", 1) as envs:
        return envs.spec


@pytest.fixture(scope="session")
def box_spec() -> EnvSpec:
    with make_envs("Pendulum-v1", 1) as envs:
        return envs.spec


@pytest.fixture
def search() -> Search:
    return Search(lr=log_uniform(1e-4, 1e-2), batch_size=integer(8, 64))


def some_transitions(spec: EnvSpec, count: int, *, seed: int = 0) -> Transitions:
    """Draw transitions that no environment has made."""
    rng = np.random.default_rng(seed)
    if spec.num_actions is None:
        action: NumpyArray = rng.uniform(-1.0, 1.0, size=(count, *spec.action_shape)).astype(
            np.float32
        )
    else:
        action = rng.integers(spec.num_actions, size=count)
    return Transitions(
        obs=rng.normal(size=(count, *spec.obs_shape)).astype(np.float32),
        action=action,
        reward=rng.normal(size=count).astype(np.float32),
        next_obs=rng.normal(size=(count, *spec.obs_shape)).astype(np.float32),
        terminated=rng.random(count) < 0.1,
        truncated=np.zeros(count, dtype=np.bool_),
        num_steps=rng.integers(1, 4, size=count).astype(np.int32),
    )


def part(batch: Transitions, start: int, size: int) -> Transitions:
    """Cut some transitions out of a batch."""
    return Transitions(*(getattr(batch, f.name)[start : start + size] for f in fields(batch)))


def given(batch: Transitions, count: int) -> Transitions:
    """Sample these transitions, like a replay."""
    assert len(batch) == count
    return batch
