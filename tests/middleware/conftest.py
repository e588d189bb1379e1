"""Fixtures of the middleware tests: small real envs, a small real policy, a real replay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ding_lite.rl import DQN, DQNConfig, Envs, ReplayBuffer, make_envs
from tests.fonts import open_fonts


@pytest.fixture(scope="session", autouse=True)
def _fonts() -> None:
    open_fonts()


@pytest.fixture
def envs() -> Iterator[Envs]:
    with make_envs("CartPole-v1", 4, seed=0) as envs:
        yield envs


@pytest.fixture
def eval_envs() -> Iterator[Envs]:
    with make_envs("CartPole-v1", 2, seed=1) as envs:
        yield envs


@pytest.fixture
def policy(envs: Envs) -> DQN:
    return DQN(envs.spec, DQNConfig(hidden=(16,), n_step=1, batch_size=8))


@pytest.fixture
def replay(envs: Envs) -> ReplayBuffer:
    return ReplayBuffer(envs.spec, capacity=1_000)
