"""Batched DQN policies of one architecture."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.evolution.batched.base import (
    Layout,
    Metrics,
    ReplayStack,
    StackedTensors,
    layers_of,
    obs_of,
)
from ding_lite.evolution.batched.modules import StackedModule, stackable
from ding_lite.rl.batch import NumpyArray, Transitions
from ding_lite.rl.formulas.q_learning import LOSSES, evaluate, q_gradient
from ding_lite.rl.networks.layers import MLPOutputs
from ding_lite.rl.networks.q_nets import MLPQNetwork, q_layers
from ding_lite.rl.policies.dqn import DQN


class DQNStack(ReplayStack[DQN]):
    """A stack of DQN policies of one architecture, or with modules of users of one.

    Example:
        >>> from ding_lite.rl import DQNConfig, make_envs
        >>> spec = make_envs("CartPole-v1", 1).spec
        >>> policies = [DQN(spec, DQNConfig(seed=seed)) for seed in range(3)]
        >>> DQNStack(policies[0], 3).hold(policies)(np.zeros((3, 5, 4), np.float32)).shape
        (3, 5)
    """

    def __init__(self, like: DQN, count: int) -> None:
        super().__init__(like, count, None if _is_mlp(like) else like.q_net.module)
        self._is_double = like.config.double
        self._loss = LOSSES[like.config.loss]
        self._first_online = cache(partial(self._make_network, self._weights))
        self._first_target = cache(partial(self._make_network, self._target))

    @classmethod
    def key(cls, policy: DQN) -> Hashable | None:
        """Return None for modules that `vmap` cannot compute."""
        config, module = policy.config, policy.q_net.module
        is_mlp = _is_mlp(policy)
        form = layers_of(policy) if is_mlp else stackable(module, (module, obs_of(policy)))
        return None if form is None else (form, config.loss, config.double)

    def _greedy(self, policies: Sequence[DQN], inputs_GNI: Tensor) -> NumpyArray:
        q_GNA = self._first_online(len(policies)).forward(inputs_GNI).numpy()
        action_GN: NumpyArray = q_GNA.argmax(axis=2)
        return action_GN

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite is a fault instead
    def _update(self, layout: Layout[DQN], batch: Transitions) -> None:
        count = layout.count
        online, target = self._first_online(count), self._first_target(count)
        obs, next_obs = self._observations(layout, batch)
        q_GBA, saved, next_q_GB = evaluate(
            online, target, layout, obs, next_obs, is_double=self._is_double
        )
        found = q_gradient(layout, batch, q_GBA, next_q_GB, self._loss)
        online.backward(saved, torch.from_numpy(found.grad_GBA))

        for row, turn in layout.learning():
            policy, loss = turn.policy, float(found.loss_G[row])
            rows = [each.rows[row] for each in (self._grads, self._weights, self._target)]
            if turn.passes(partial(policy.step, loss, *rows)) and turn.count():
                turn.outcome.metrics = _metrics(policy, loss, float(found.q_mean_G[row]))
                turn.outcome.batch = layout.part(batch, row)

    def _make_network(self, weights: StackedTensors, first: int) -> StackedModule | MLPOutputs:
        if self._module is not None:
            return StackedModule(self._module, weights, self._grads, first)
        module: Any = self._like.q_net.module
        return MLPOutputs(q_layers(module, weights, self._grads, first=first))


def _is_mlp(policy: DQN) -> bool:
    return isinstance(policy.q_net, MLPQNetwork)


def _metrics(policy: DQN, loss: float, q_mean: float) -> Metrics:
    metrics = {"loss": loss, "q_mean": q_mean}
    if policy.config.lr_end is not None:
        metrics["lr"] = policy.lr
    return metrics
