"""Batched DQN policies with a user's modules."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from torch import Tensor

from ding_lite.evolution.batched_dqn import DQNStack, StackedValues
from ding_lite.evolution.batched_modules.stacked import (
    StackedModule,
    StackedOutputs,
    architecture,
    can_stack,
    members_obs,
)
from ding_lite.evolution.batched_policies import StackedTensors, inputs_dtype
from ding_lite.rl.batch import Array, FloatArray, NumpyArray
from ding_lite.rl.policies.dqn import DQN, network_of
from ding_lite.rl.weights.flat_module import copied


class ModuleDQNStack(DQNStack):
    """A stack of DQN policies with modules of one architecture, made by one function.

    Example:
        >>> from torch import nn
        >>> from ding_lite.rl import DQNConfig, make_envs
        >>> spec = make_envs("CartPole-v1", 1).spec
        >>> make = lambda spec: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        >>> policies = [DQN(spec, DQNConfig(seed=seed), network=make) for seed in range(3)]
        >>> ModuleDQNStack(policies[0], 3).q_values(policies, np.zeros((3, 5, 4), np.float32)).shape
        (3, 5, 2)
    """

    def __init__(self, like: DQN, count: int) -> None:
        self._module = copied(network_of(like).module)
        super().__init__(like, count)

    @classmethod
    def key(cls, policy: DQN) -> Hashable | None:
        """Return None for modules that `vmap` cannot compute."""
        config, module = policy.config, network_of(policy).module
        form = architecture(module)
        obs = (policy.spec.obs_shape, inputs_dtype(policy))
        if form is None or not can_stack(form, (module, (obs,))):
            return None
        return form, config.loss, config.double, config.normalize_obs

    def q_values(self, policies: Sequence[DQN], obs: FloatArray) -> FloatArray:
        """Estimate the returns of the actions for observations of each policy.

        Each policy computes its own: batch sizes vary from call to call, and tracing takes longer.
        """
        rows = obs if len(obs) == len(policies) else [obs[0]] * len(policies)
        pairs = zip(policies, rows, strict=True)
        return np.stack([policy.q_values(row) for policy, row in pairs])

    def hold(self, policies: Sequence[DQN]) -> Callable[[NumpyArray], NumpyArray]:
        """Return a function that acts greedily by some policies."""
        return lambda obs: self.q_values(policies, obs).argmax(axis=2)

    def _vectors(self, obs: Array, count: int) -> Tensor:
        return members_obs(obs, count)

    def _make_network(self, weights: StackedTensors, first: int) -> StackedValues:
        names = [name for name, _ in self._module.named_parameters()]
        grads = [self._grads[name][:first] for name in names]
        parameters = {name: weights[name][:first] for name in names}
        return StackedOutputs(StackedModule(self._module, parameters, grads))
