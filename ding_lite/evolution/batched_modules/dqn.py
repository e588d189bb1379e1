"""Batched DQN policies with a user's modules."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

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
from ding_lite.rl.batch import Array
from ding_lite.rl.policies.dqn import DQN, network_of
from ding_lite.rl.weights.flat_module import copied


class ModuleDQNStack(DQNStack):
    """A stack of DQN policies with modules of one architecture, made by one function.

    Example:
        >>> from torch import nn
        >>> from ding_lite.rl import DQNConfig, make_envs
        >>> spec = make_envs("CartPole-v1", 1).spec
        >>> make = lambda spec: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        >>> one, other = (DQN(spec, DQNConfig(seed=seed), network=make) for seed in range(2))
        >>> ModuleDQNStack.key(one) == ModuleDQNStack.key(other)
        True
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

    def hold(self, policies: Sequence[DQN]) -> None:
        """Return None, as modules act alone."""

    def _vectors(self, obs: Array, count: int) -> Tensor:
        return members_obs(obs, count)

    def _make_network(self, weights: StackedTensors, first: int) -> StackedValues:
        return StackedOutputs(StackedModule.of(self._module, weights, self._grads, first))
