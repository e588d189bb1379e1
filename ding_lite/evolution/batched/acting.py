"""Batched acting of agents in one vector of environments."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from ding_lite.evolution.agent import Agent
from ding_lite.evolution.batched.stacks import make_stack, stack_key
from ding_lite.rl.batch import BoolArray, NumpyArray
from ding_lite.rl.memory import Memory, memory_of
from ding_lite.rl.protocols import Policy


class ActTogether:
    """Acts greedily for several agents; agents of one architecture are computed together.

    Agents with memory act one after the other, each by its own states. The object is valid until
    the weights of the policies change.

    Example:
        >>> from ding_lite.rl import DQN, make_envs
        >>> envs = make_envs("CartPole-v1", 4)
        >>> agents = [Agent(DQN(envs.spec), place=place) for place in range(2)]
        >>> ActTogether(agents)(envs.obs, np.array([0, 1, 1, 0])).shape
        (4,)
    """

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._agents = agents
        self._spec = agents[0].spec
        groups: dict[Hashable, list[tuple[int, Policy]]] = {}
        for index, agent in enumerate(agents):
            key = stack_key(agent.policy) if memory_of(agent, 1) is None else None
            if key is not None:
                groups.setdefault(key, []).append((index, agent.policy))
        self._groups: list[tuple[Callable[[NumpyArray], NumpyArray], NumpyArray]] = []
        """For each group: its choosing function, and the row of each agent, or -1."""
        alone = set(range(len(agents)))
        for members in (several for several in groups.values() if len(several) > 1):
            indices, policies = zip(*members, strict=True)
            choose = make_stack(policies[0], len(policies)).hold(policies)
            if choose is not None:
                row_of = np.full(len(agents), -1)
                row_of[[*indices]] = np.arange(len(indices))
                self._groups.append((choose, row_of))
                alone -= set(indices)
        # Each agent has states for all environments; only those where it acts are used.
        self._memories: dict[int, Memory | None] = {}
        self._alone = sorted(alone)

    def __call__(self, obs: NumpyArray, agent_N: NumpyArray) -> NumpyArray:
        """Choose an action for each observation.

        Returns:
            Actions, [N, ...].
        """
        actions = np.zeros((len(obs), *self._spec.action_shape), self._spec.action_dtype)
        for choose, row_of in self._groups:
            row_N = row_of[agent_N]
            own_N = np.flatnonzero(row_N >= 0)
            if own_N.size:
                # All networks see all observations: for small networks a call costs more than the
                # arithmetic.
                actions_GN = choose(obs[None, own_N])
                actions[own_N] = actions_GN[row_N[own_N], np.arange(own_N.size)]
        for index in self._alone:
            own_N = agent_N == index
            if own_N.any():
                actions[own_N] = self._act_alone(index, obs, own_N)
        return actions

    def reset(self, done_N: BoolArray) -> None:
        """Reset the memory of agents that have one, where an episode has ended."""
        for memory in self._memories.values():
            if memory is not None:
                memory.reset(done_N)

    def _act_alone(self, index: int, obs: NumpyArray, own_N: BoolArray) -> NumpyArray:
        agent = self._agents[index]
        act: Callable[..., NumpyArray] = agent.act
        if index not in self._memories:
            self._memories[index] = memory_of(agent, len(obs))
        memory = self._memories[index]
        part = None if memory is None else memory_of(agent, int(own_N.sum()))
        if memory is None or part is None:
            return act(obs[own_N], explore=False)
        part.state[:] = memory.state[own_N]
        actions = act(obs[own_N], explore=False, memory=part)
        memory.state[own_N] = part.state
        return actions
