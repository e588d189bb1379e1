"""What the tests of middleware share: small real envs, a small real policy, a real replay."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure

from ding_lite.rl.envs import Envs, make_envs
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.replay import ReplayBuffer


@pytest.fixture(scope="session", autouse=True)
def _fonts() -> None:
    """Let matplotlib open its fonts, which it keeps open, before descriptors are counted."""
    figure = Figure()
    figure.text(0.1, 0.1, "plain")
    figure.text(0.1, 0.2, "bold", fontweight="bold")
    figure.savefig(io.BytesIO())


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
