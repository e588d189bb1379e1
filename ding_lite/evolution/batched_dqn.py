"""Batched DQN policies of one architecture."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ding_lite.evolution.batched_policies import Layout, Metrics, ReplayStack, StackedTensors
from ding_lite.rl.batch import NumpyArray, Transitions
from ding_lite.rl.formulas.q_learning import LOSSES, Values, evaluate, q_gradient
from ding_lite.rl.networks.inputs import as_floats
from ding_lite.rl.networks.layers import MLP, MLPOutputs, names_of
from ding_lite.rl.policies.dqn import DQN


class StackedValues(Values, Protocol):
    """The networks of the first policies of a stack."""

    def backward(self, saved: Any, grad_GBA: Tensor, /) -> None:  # noqa: ANN401 - each its own
        """Write the gradients of the weights, given the gradient of the values."""


class DQNStack(ReplayStack[DQN]):
    """A stack of DQN policies of one architecture.

    Example:
        >>> from ding_lite.rl import DQNConfig, make_envs
        >>> spec = make_envs("CartPole-v1", 1).spec
        >>> policies = [DQN(spec, DQNConfig(seed=seed)) for seed in range(3)]
        >>> DQNStack(policies[0], 3).hold(policies)(np.zeros((3, 5, 4), np.float32)).shape
        (3, 5)
    """

    def __init__(self, like: DQN, count: int) -> None:
        super().__init__(like, count)
        config = like.config
        self._names = names_of("torso", len(config.hidden))
        self._activation = config.activation
        self._is_double = config.double
        self._loss = LOSSES[config.loss]
        self._first_online = cache(partial(self._make_network, self._weights))
        self._first_target = cache(partial(self._make_network, self._target))

    @classmethod
    def key(cls, policy: DQN) -> Hashable | None:
        """Return None for policies that this stack does not compute, such as those with images."""
        config = policy.config
        if policy.spec.is_image or config.dueling or policy.has_own_network:
            return None
        weights, _ = policy.flat_weights
        form = (config.activation, config.loss, config.double, config.normalize_obs)
        return (tuple(weights.shapes.items()), *form)

    def hold(self, policies: Sequence[DQN]) -> Callable[[NumpyArray], NumpyArray] | None:
        """Copy the weights of some policies; return a function that acts greedily by them."""
        network = self._first_online(self._take(policies))

        def greedy(obs: NumpyArray) -> NumpyArray:
            vectors = as_floats(torch.from_numpy(self._seen_by(policies, obs))).flatten(2)
            q_GNA = network.forward(vectors.expand(len(policies), -1, -1)).numpy()
            action_GN: NumpyArray = q_GNA.argmax(axis=2)
            return action_GN

        return greedy

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
            if not turn.passes(partial(policy.check_loss, loss)):
                continue
            policy.step(self._grads.rows[row], self._weights.rows[row], self._target.rows[row])
            if turn.count():
                turn.outcome.metrics = _metrics(policy, loss, float(found.q_mean_G[row]))
                turn.outcome.batch = layout.part(batch, row)

    def _make_network(self, weights: StackedTensors, first: int) -> StackedValues:
        layers = MLP(
            weights, self._grads, self._names, "head", activation=self._activation, first=first
        )
        return MLPOutputs(layers)


def _metrics(policy: DQN, loss: float, q_mean: float) -> Metrics:
    metrics = {"loss": loss, "q_mean": q_mean}
    if policy.config.lr_end is not None:
        metrics["lr"] = policy.lr
    return metrics
