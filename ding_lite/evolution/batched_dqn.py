"""Batched DQN policies of one architecture."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from ding_lite.evolution.batched_policies import (
    Layout,
    Metrics,
    Stack,
    StackedTensors,
)
from ding_lite.rl.batch import FloatArray, NumpyArray, Transitions
from ding_lite.rl.formulas.losses import LOSSES
from ding_lite.rl.formulas.q_learning import best_values, q_gradient
from ding_lite.rl.networks.inputs import as_floats
from ding_lite.rl.networks.layers import MLP, names_of
from ding_lite.rl.policies.dqn import DQN


class DQNStack(Stack[DQN]):
    """A stack of DQN policies of one architecture.

    Example:
        >>> from ding_lite.rl import DQNConfig, make_envs
        >>> spec = make_envs("CartPole-v1", 1).spec
        >>> policies = [DQN(spec, DQNConfig(seed=seed)) for seed in range(3)]
        >>> DQNStack(policies[0], 3).q_values(policies, np.zeros((3, 5, 4), np.float32)).shape
        (3, 5, 2)
    """

    def __init__(self, like: DQN, count: int) -> None:
        """Allocate memory."""
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
        """Return None for what has no written-out form here, and for shared gradients."""
        config = policy.config
        if policy.spec.packing is not None:
            return None
        if policy.spec.is_image or config.dueling or config.normalize_obs or policy.reduce_gradient:
            return None
        if policy.has_own_network or policy.has_own_optimizer:
            return None
        weights, _ = policy.flat_weights
        return (tuple(weights.shapes.items()), config.activation, config.loss, config.double)

    def q_values(self, policies: Sequence[DQN], obs: FloatArray) -> FloatArray:
        """Estimate the returns of the actions for observations of each policy.

        Args:
            policies: At most as many as the stack has places.
            obs: [G, N, ...], N observations for each of the G policies, or [1, N, ...] for all.

        Returns:
            Values, [G, N, A].
        """
        return self._values(self._take(policies), obs)

    def hold(self, policies: Sequence[DQN]) -> Callable[[NumpyArray], NumpyArray]:
        """Copy the weights of some policies; return a function that acts greedily by them."""
        count = self._take(policies)
        return lambda obs: self._values(count, obs).argmax(axis=2)

    def _values(self, count: int, obs: FloatArray) -> FloatArray:
        vectors = as_floats(torch.from_numpy(obs)).flatten(2).expand(count, -1, -1)
        values: FloatArray = self._first_online(count).forward(vectors)[-1].numpy()
        return values

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite is a fault instead
    def _update(self, layout: Layout[DQN], batch: Transitions) -> None:
        """Do one update of the policies with updates left."""
        q_GBA, saved, next_q_GB = self._evaluate(layout, batch)
        found = q_gradient(layout, batch, q_GBA, next_q_GB, self._loss)
        self._first_online(layout.count).backward(saved, torch.from_numpy(found.grad_GBA))

        for row, turn in layout.learning():
            policy, loss = turn.policy, float(found.loss_G[row])
            if not turn.passes(partial(policy.check_loss, loss)):
                continue
            policy.step(self._grads.rows[row], self._weights.rows[row], self._target.rows[row])
            if turn.count():
                turn.outcome.metrics = _metrics(policy, loss, float(found.q_mean_G[row]))
                turn.outcome.batch = layout.part(batch, row)

    def _evaluate(
        self, layout: Layout[DQN], batch: Transitions
    ) -> tuple[FloatArray, list[Tensor], FloatArray]:
        """Return Q(x, .), the activations that its backward needs, and the value of x'."""
        count, largest = layout.count, layout.largest
        online, target = self._first_online(count), self._first_target(count)
        obs, next_obs = (self._vectors(found, count) for found in (batch.obs, batch.next_obs))
        next_target_GBA = target.forward(next_obs)[-1].numpy()
        if not self._is_double:
            saved, rank_GBA = online.forward(obs), next_target_GBA
        else:
            both = online.forward(torch.cat((obs, next_obs), dim=1))
            saved = [output[:, :largest] for output in both]
            rank_GBA = both[-1].numpy()[:, largest:]
        return saved[-1].numpy(), saved, best_values(layout, next_target_GBA, rank_GBA)

    def _make_network(self, weights: StackedTensors, first: int) -> MLP:
        return MLP(
            weights, self._grads, self._names, "head", activation=self._activation, first=first
        )


def _metrics(policy: DQN, loss: float, q_mean: float) -> Metrics:
    """Return what an update of the policy alone reports."""
    metrics = {"loss": loss, "q_mean": q_mean}
    if policy.config.lr_end is not None:
        metrics["lr"] = policy.lr
    return metrics
