"""Batched acting chooses the actions that each agent would choose alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from ding_lite.evolution.agent import Agent
from ding_lite.evolution.batched.acting import ActTogether
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.policies.ddpg import DDPG
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.policies.sac import SAC
from ding_lite.rl.policies.td3 import TD3
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_policies.r2d2 import R2D2, R2D2Config


def agents_of(spec: EnvSpec, hiddens: Sequence[tuple[int, ...]]) -> list[Agent]:
    return [
        Agent(DQN(spec, DQNConfig(hidden=hidden, seed=place)), place=place)
        for place, hidden in enumerate(hiddens)
    ]


@pytest.mark.parametrize(
    "hiddens",
    [[(32, 32)] * 6, [(32, 32), (8,), (32, 32), (8,), (16, 16)], [(8,)]],
    ids=["one shape", "three shapes", "alone"],
)
def test_each_agent_acts_as_it_would_alone(
    spec: EnvSpec, hiddens: Sequence[tuple[int, ...]]
) -> None:
    agents = agents_of(spec, hiddens)
    act = ActTogether(agents)
    rng = np.random.default_rng(0)
    chosen = set()
    for _ in range(50):
        obs = rng.normal(size=(16, *spec.obs_shape)).astype(np.float32)
        agent_N = rng.integers(len(agents), size=16)
        actions = act(obs, agent_N)
        for row, index in enumerate(agent_N):
            policy = agents[index].policy
            assert isinstance(policy, DQN)
            q_values = policy.q_values(obs[row : row + 1])[0]
            assert q_values[actions[row]] >= q_values.max() - 1e-5
        chosen |= set(actions.tolist())
    assert actions.dtype == spec.action_dtype
    assert chosen == {0, 1}


def test_agents_with_networks_of_users_act_as_alone(spec: EnvSpec) -> None:
    policies = [
        DQN(spec, DQNConfig(seed=seed), network=lambda _: nn.Linear(spec.obs_shape[0], 2))
        for seed in range(3)
    ]
    obs = np.random.default_rng(0).normal(size=(6, *spec.obs_shape)).astype(np.float32)
    agent_N = np.array([1, 0, 2, 0, 2, 1])
    actions = ActTogether([Agent(policy) for policy in policies])(obs, agent_N)
    values = [policies[index].q_values(obs[[row]])[0] for row, index in enumerate(agent_N)]
    assert actions.tolist() == np.argmax(values, axis=1).tolist()


def test_an_agent_may_have_no_observations(spec: EnvSpec) -> None:
    agents = agents_of(spec, [(8,), (8,), (8,), (4,)])
    obs = np.ones((2, *spec.obs_shape), dtype=np.float32)
    actions = ActTogether(agents)(obs, np.array([3, 3]))
    assert actions.tolist() == agents[3].act(obs, explore=False).tolist()


@pytest.mark.parametrize("kind", [DDPG, TD3, SAC])
def test_continuous_actions_are_batched_too(box_spec: EnvSpec, kind: Any) -> None:
    config = kind(box_spec).config
    policies = [kind(box_spec, replace(config, hidden=(8,), seed=seed)) for seed in range(3)]
    policies.append(kind(box_spec, replace(config, hidden=(4,), seed=3)))
    agents = [Agent(policy) for policy in policies]
    obs = np.random.default_rng(0).normal(size=(6, *box_spec.obs_shape)).astype(np.float32)
    agent_N = np.array([1, 0, 3, 0, 2, 1])
    actions = ActTogether(agents)(obs, agent_N)
    assert actions.shape == (6, *box_spec.action_shape)
    assert actions.dtype == box_spec.action_dtype
    alone = [
        agents[index].act(obs[row : row + 1], explore=False) for row, index in enumerate(agent_N)
    ]
    np.testing.assert_allclose(actions, np.concatenate(alone), atol=1e-5)


def test_agents_with_memory_act_by_a_state_of_their_own() -> None:
    envs = make_envs("CartPole-v1", 6, seed=0)
    config = R2D2Config(hidden=(4,), memory_size=3)
    agents = [Agent(R2D2(envs.spec, replace(config, seed=place)), place=place) for place in (0, 1)]
    act = ActTogether(agents)
    agent_N = np.array([0, 1, 0, 1, 1, 0])
    policies: list[Any] = [agent.policy for agent in agents]
    states = [np.zeros((6, policy.state_size), np.float32) for policy in policies]
    for _ in range(40):
        expected = np.zeros(6, dtype=np.int64)
        for row, index in enumerate(agent_N):
            memory = policies[index].make_memory(1)
            memory.state[:] = states[index][row]
            obs = envs.obs[row : row + 1]
            expected[row] = policies[index].act(obs, explore=False, memory=memory)[0]
            states[index][row] = memory.state[0]
        actions = act(envs.obs, agent_N)
        assert actions.tolist() == expected.tolist()
        step = envs.step(actions)
        done_N = step.terminated | step.truncated
        act.reset(done_N)
        for row in np.flatnonzero(done_N).tolist():
            states[0][row] = states[1][row] = 0.0
            agent_N[row] = 1 - agent_N[row]
