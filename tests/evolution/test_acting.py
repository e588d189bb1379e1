"""Agents that act in one vector of environments choose what each would choose alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ding_lite.evolution.acting import ActTogether
from ding_lite.evolution.agent import Agent
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.policies.sac import SAC, SACConfig
from ding_lite.rl.spec import EnvSpec


def agents_of(spec: EnvSpec, hiddens: Sequence[tuple[int, ...]]) -> list[Agent]:
    return [
        Agent(DQN(spec, DQNConfig(hidden=hidden, seed=place)), place=place)
        for place, hidden in enumerate(hiddens)
    ]


@pytest.mark.parametrize(
    "hiddens",
    [
        [(32, 32)] * 6,
        [(32, 32), (8,), (32, 32), (8,), (16, 16)],
        [(8,)],
    ],
    ids=["one shape", "three shapes", "alone"],
)
def test_each_acts_as_it_would_alone(spec: EnvSpec, hiddens: Sequence[tuple[int, ...]]) -> None:
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


def test_some_may_have_nothing_to_do(spec: EnvSpec) -> None:
    agents = agents_of(spec, [(8,), (8,), (8,), (4,)])
    obs = np.ones((2, *spec.obs_shape), dtype=np.float32)
    actions = ActTogether(agents)(obs, np.array([3, 3]))
    assert actions.tolist() == agents[3].act(obs, explore=False).tolist()


def test_continuous_actions_are_chosen_one_agent_after_the_other(box_spec: EnvSpec) -> None:
    agents = [Agent(SAC(box_spec, SACConfig(hidden=(8,), seed=seed))) for seed in range(2)]
    obs = np.random.default_rng(0).normal(size=(4, *box_spec.obs_shape)).astype(np.float32)
    actions = ActTogether(agents)(obs, np.array([1, 0, 0, 1]))
    assert actions.shape == (4, *box_spec.action_shape)
    np.testing.assert_array_equal(actions[1:3], agents[0].act(obs[1:3], explore=False))
    np.testing.assert_array_equal(actions[::3], agents[1].act(obs[::3], explore=False))
