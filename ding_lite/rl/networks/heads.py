"""Heads: from features to a value per action, with their backward written out."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ding_lite.rl.batch import FloatArray
from ding_lite.rl.networks.flat import FlatWeights
from ding_lite.rl.networks.torso import Linear


class QHead(Protocol):
    """Computes values from features."""

    def forward(self, features_BI: Tensor) -> Tensor:
        """Compute the values, [B, A]."""

    def forward_numpy(self, features_NI: FloatArray) -> FloatArray:
        """Compute the values for few features, for which numpy has less overhead."""

    def backward(self, features_BI: Tensor, grad_BA: Tensor) -> Tensor:
        """Write the gradients of the weights; return that of the features, [B, I]."""


class LinearHead:
    """One layer: one value per action."""

    def __init__(self, weights: FlatWeights, grads: FlatWeights) -> None:
        """Take the tensors of `shapes`."""
        self._layer = Linear(weights, grads, name="head")

    @staticmethod
    def shapes(num_features: int, num_actions: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of such a head."""
        return Linear.shapes("head", num_features, num_actions)

    def forward(self, features_BI: Tensor) -> Tensor:
        """Compute the values, [B, A]."""
        return self._layer.forward(features_BI)

    def forward_numpy(self, features_NI: FloatArray) -> FloatArray:
        """Compute the values for few features."""
        return self._layer.forward_numpy(features_NI)

    def backward(self, features_BI: Tensor, grad_BA: Tensor) -> Tensor:
        """Write the gradients of the weights; return that of the features, [B, I]."""
        self._layer.backward(features_BI, grad_BA)
        return self._layer.backward_input(grad_BA)


class DuelingHead:
    """The value of an observation, and the advantage of each action (Wang et al. 2016).

    q(x, a) = v(x) + adv(x, a) - mean over a' of adv(x, a') (arXiv:1511.06581, equation 9). The
    first half of the features is for v, the second for the advantages, so that each has a last
    hidden layer of its own.
    """

    def __init__(self, weights: FlatWeights, grads: FlatWeights) -> None:
        """Take the tensors of `shapes`."""
        self._value = Linear(weights, grads, name="head.value")
        self._advantage = Linear(weights, grads, name="head.advantage")
        self._half = weights["head.value.weight"].shape[1]

    @staticmethod
    def shapes(num_features: int, num_actions: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of such a head."""
        half = num_features // 2
        return Linear.shapes("head.value", half, 1) | Linear.shapes(
            "head.advantage", half, num_actions
        )

    def forward(self, features_BI: Tensor) -> Tensor:
        """Compute the values, [B, A]."""
        value_B1 = self._value.forward(features_BI[:, : self._half])
        advantage_BA = self._advantage.forward(features_BI[:, self._half :])
        return advantage_BA.add_(value_B1 - advantage_BA.mean(1, keepdim=True))

    def forward_numpy(self, features_NI: FloatArray) -> FloatArray:
        """Compute the values for few features."""
        value_N1 = self._value.forward_numpy(features_NI[:, : self._half])
        advantage_NA = self._advantage.forward_numpy(features_NI[:, self._half :])
        advantage_NA += value_N1 - advantage_NA.mean(axis=1, keepdims=True)
        return advantage_NA

    def backward(self, features_BI: Tensor, grad_BA: Tensor) -> Tensor:
        """Write the gradients of the weights; return that of the features, [B, I]."""
        value_grad_B1 = grad_BA.sum(1, keepdim=True)
        advantage_grad_BA = grad_BA - value_grad_B1 / grad_BA.shape[1]
        self._value.backward(features_BI[:, : self._half], value_grad_B1)
        self._advantage.backward(features_BI[:, self._half :], advantage_grad_BA)
        parts = (
            self._value.backward_input(value_grad_B1),
            self._advantage.backward_input(advantage_grad_BA),
        )
        return torch.cat(parts, dim=1)
