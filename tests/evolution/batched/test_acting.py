"""Batched acting chooses the actions that each agent would choose alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from ding_lite.evolution import Agent
from ding_lite.evolution.batched.acting import ActTogether
from ding_lite.rl import DQN, R2D2, SAC, EnvSpec, R2D2Config, make_envs


def linear(spec: EnvSpec) -> nn.Module:
    return nn.Linear(spec.obs_shape[0], 2)


@pytest.mark.parametrize(
    ("kind", "hiddens", "parts"),
    [
        (DQN, [(32, 32)] * 6, {}),
        (DQN, [(32, 32), (8,), (32, 32), (8,), (16, 16)], {}),
        (DQN, [(8,)], {}),
        (DQN, [None] * 3, {"network": linear}),
        (SAC, [(8,), (8,), (8,), (4,)], {}),
    ],
    ids=["one shape", "three shapes", "alone", "networks of users", "continuous actions"],
)
def test_each_agent_acts_as_it_would_alone(spec, box_spec, kind, hiddens, parts):
    its = spec if kind is DQN else box_spec
    shapes = [{"hidden": hidden} if hidden else {} for hidden in hiddens]
    agents = [
        Agent(kind(its, {**shape, "seed": place}, **parts), place=place)
        for place, shape in enumerate(shapes)
    ]
    act, rng, chosen = ActTogether(agents), np.random.default_rng(0), set()
    for count in (16, 16, 16, 2):  # with two observations most agents have none
        obs = rng.normal(size=(count, *its.obs_shape)).astype(np.float32)
        agent_N = rng.integers(len(agents), size=count)
        actions = act(obs, agent_N)
        alone = [agents[k].act(obs[[row]], explore=False) for row, k in enumerate(agent_N)]
        np.testing.assert_allclose(actions, np.concatenate(alone), atol=1e-5)
        chosen |= {*actions.ravel().tolist()}
    assert actions.dtype == its.action_dtype
    assert len(chosen) > 1


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
