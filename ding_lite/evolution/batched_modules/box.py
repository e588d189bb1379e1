"""Batched DDPG, TD3 and SAC policies with a user's actors and critics."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.evolution.batched_box import BoxStack, BoxT
from ding_lite.evolution.batched_modules.stacked import (
    StackedModule,
    StackedOutputs,
    architecture,
    can_stack,
    members_obs,
)
from ding_lite.evolution.batched_policies import StackedTensors, inputs_dtype
from ding_lite.rl.batch import Array
from ding_lite.rl.networks.action_values import Critics
from ding_lite.rl.networks.box_actors import OwnActor
from ding_lite.rl.recorded.box import CriticList, action_gradient
from ding_lite.rl.weights.flat_module import copied


class ModuleBoxStack(BoxStack[BoxT]):
    """A stack of DDPG, TD3 or SAC policies with actors and critics of one architecture each.

    Example:
        >>> from ding_lite.rl import DDPG, DDPGConfig, make_envs
        >>> envs = make_envs("Pendulum-v1", 5)
        >>> actor = lambda spec: nn.Sequential(nn.Linear(3, 1), nn.Tanh())
        >>> critic = lambda spec: nn.Bilinear(3, 1, 1)
        >>> made = [DDPG(envs.spec, DDPGConfig(seed=s), actor=actor, critic=critic) for s in (1, 2)]
        >>> ModuleBoxStack.key(made[0]) == ModuleBoxStack.key(made[1])
        True
    """

    def __init__(self, like: BoxT, count: int) -> None:
        self._modules = {prefix: copied(module) for prefix, module in _modules_of(like).items()}
        super().__init__(like, count)

    @classmethod
    def key(cls, policy: BoxT) -> Hashable | None:
        """Return None unless `vmap` computes both actor and critics."""
        spec = policy.spec
        if not {"actor", "critic"} <= policy.parts.keys():
            return None
        critics, actor = _modules_of(policy).values()
        form = architecture(nn.ModuleList([critics, actor]))
        obs = (spec.obs_shape, inputs_dtype(policy))
        action = ((int(np.prod(spec.action_shape)),), np.float32)
        if form is None or not can_stack(form, (actor, (obs,)), (critics, (obs, action))):
            return None
        return type(policy), form, policy.config.normalize_obs

    def hold(self, policies: Sequence[BoxT]) -> None:
        """Return None, as modules act alone."""

    def _vectors(self, obs: Array, count: int) -> Tensor:
        return members_obs(obs, count)

    def _actor_on(self, weights: StackedTensors, count: int) -> Any:  # noqa: ANN401 - of the form
        body: Any = StackedOutputs(self._stacked("actor.", weights, count))  # never acts
        actor_type = self._like.form.actor_type
        return actor_type(body) if actor_type.outputs_per_action > 1 else OwnActor(body, self._spec)

    def _critics_on(
        self, weights: StackedTensors, count: int, *, first: int | None = None
    ) -> Critics:
        return StackedCritics(self._stacked("critics.", weights, count, first))

    def _stacked(
        self, prefix: str, weights: StackedTensors, count: int, *more: object
    ) -> StackedModule:
        return StackedModule.of(
            self._modules[prefix],
            weights,
            self._grads,
            count,
            rename=lambda name: prefix + name,
            more=more,
        )


class StackedCritics:
    """The modules of the critics of several policies, a `CriticList` of each."""

    def __init__(self, modules: StackedModule) -> None:
        self._modules = modules

    def forward(self, obs: Tensor, action_GBA: Tensor) -> Tensor:
        with torch.no_grad():
            return self._modules.forward(obs, action_GBA)[-1].transpose(0, 1)

    def forward_saving(self, obs: Tensor, action_GBA: Tensor) -> tuple[Tensor, list[Tensor]]:
        with torch.enable_grad():
            saved = self._modules.forward(obs, action_GBA)
        return saved[-1].detach().transpose(0, 1), saved

    def forward_action(
        self, obs: Tensor, action_GBA: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        action_GBA = action_GBA.detach().requires_grad_()
        q_GEB = self._modules.forward_inputs(obs, action_GBA)
        return q_GEB.detach().transpose(0, 1), (action_GBA, q_GEB)

    def backward(self, saved: Sequence[Tensor], grad_EGB: Tensor) -> None:
        self._modules.backward(saved, grad_EGB.transpose(0, 1))

    def backward_action(self, saved: tuple[Tensor, Tensor], grad_EGB: Tensor) -> Tensor:
        return action_gradient(*saved, grad_EGB.transpose(0, 1))


def _modules_of(policy: Any) -> Mapping[str, nn.Module]:  # noqa: ANN401 - of any box policy
    """Return the actor and the critics, by the prefix of their weights."""
    own = policy.own_modules["weights"]
    critics = [module for prefix, module in own.items() if prefix != "actor."]
    return {"critics.": CriticList(critics), "actor.": own["actor."]}
