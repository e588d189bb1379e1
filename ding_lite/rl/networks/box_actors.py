"""Actors for box actions, deterministic and squashed Gaussian, with actions from -1 to 1.

Forward and backward are written out, as in `torso`; a test compares both with autograd.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ding_lite.rl.batch import FloatArray
from ding_lite.rl.networks.flat import FlatWeights
from ding_lite.rl.networks.q_nets import MAX_NUMPY_PRODUCTS
from ding_lite.rl.networks.torso import MLP, Linear

LOWEST_LOG_STD = -20.0
HIGHEST_LOG_STD = 2.0
_LOG_2 = math.log(2.0)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class BoxActor(ABC):
    """Hidden layers with ReLUs, and a linear output layer.

    Args:
        weights: Holds the tensors of `shapes`.
        grads: Takes their gradients.
        sizes: The length of an observation, then the widths of the hidden layers.
    """

    outputs_per_action: ClassVar[int]
    """The outputs of the last layer per dimension of the action."""

    def __init__(self, weights: FlatWeights, grads: FlatWeights, *, sizes: Sequence[int]) -> None:
        """Take the tensors `torso.<layer>` and `head`, `.weight` and `.bias` of each."""
        self._hidden = MLP(weights, grads, sizes=sizes)
        self._last = Linear(weights, grads, name="head")
        self._device = weights.flat.device
        largest = max(math.prod(shape) for shape in weights.shapes.values())
        self._max_numpy_rows = MAX_NUMPY_PRODUCTS // largest if self._device.type == "cpu" else 0

    @classmethod
    def shapes(cls, sizes: Sequence[int], num_actions: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of such an actor."""
        num_outputs = cls.outputs_per_action * num_actions
        return MLP.shapes(sizes) | Linear.shapes("head", sizes[-1], num_outputs)

    @abstractmethod
    def act(self, obs_NI: FloatArray) -> FloatArray:
        """Compute the best actions of few or many observations, [N, A], as an array."""

    def _forward(self, obs_BI: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Compute the outputs of the last layer, and the activations for `_backward`."""
        outputs = self._hidden.forward(obs_BI)
        return self._last.forward(outputs[-1]), outputs

    def _backward(self, outputs: Sequence[Tensor], grad_BO: Tensor) -> None:
        self._last.backward(outputs[-1], grad_BO)
        self._hidden.backward(outputs, self._last.backward_input(grad_BO))

    def _look(self, obs_NI: FloatArray) -> FloatArray:
        """Compute the outputs of the last layer, as an array."""
        if len(obs_NI) <= self._max_numpy_rows:
            return self._last.forward_numpy(self._hidden.forward_numpy(obs_NI))
        found_NO, _ = self._forward(torch.from_numpy(obs_NI).to(self._device))
        array_NO: FloatArray = found_NO.cpu().numpy()
        return array_NO


class DeterministicActor(BoxActor):
    """A deterministic actor: the action is the tanh of the last layer's output."""

    outputs_per_action = 1

    def act(self, obs_NI: FloatArray) -> FloatArray:
        """Compute the actions of few or many observations, [N, A], as an array."""
        raw_NA = self._look(obs_NI)
        return np.tanh(raw_NA, out=raw_NA)

    def forward(self, obs_BI: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Compute the actions, [B, A], and the activations for `backward`."""
        raw_BA, outputs = self._forward(obs_BI)
        return raw_BA.tanh_(), outputs

    def backward(self, outputs: Sequence[Tensor], action_BA: Tensor, grad_BA: Tensor) -> None:
        """Write the gradients of the weights, given that of the actions."""
        self._backward(outputs, torch.ops.aten.tanh_backward(grad_BA, action_BA))


@dataclass(frozen=True, slots=True)
class Sample:
    """Actions sampled from a squashed Gaussian, with the values that its gradient needs."""

    action_BA: Tensor
    """From -1 to 1."""
    log_prob_B: Tensor
    """The logarithm of the density of each."""
    spread_BA: Tensor
    """The distance of each from the mean before the tanh: its gradient by the log of std."""
    free_BA: Tensor
    """1 where the log of std was within its limits, else 0."""

    def backward(self, grad_BA: Tensor, *, log_prob_grad: float | Tensor) -> Tensor:
        """Compute the gradient of mean and log of std, the outputs of the last layer.

        Args:
            grad_BA: The gradient of the actions.
            log_prob_grad: That of the log_prob of each; one for all, or one each, [B, 1].
        """
        action_BA = self.action_BA
        mean_grad_BA = torch.ops.aten.tanh_backward(grad_BA, action_BA)
        mean_grad_BA += (2.0 * log_prob_grad) * action_BA  # of -log(1 - tanh(z)^2)
        log_std_grad_BA = (mean_grad_BA * self.spread_BA - log_prob_grad) * self.free_BA
        return torch.cat((mean_grad_BA, log_std_grad_BA), dim=-1)


def squash(raw: Tensor, noise_BA: Tensor) -> Sample:
    """Sample actions from the last layer's outputs: means, then logs of std.

    Args:
        raw: [..., 2A].
        noise_BA: Standard normal numbers, [..., A].
    """
    mean_BA, raw_log_std_BA = raw.chunk(2, dim=-1)
    log_std_BA = raw_log_std_BA.clamp(LOWEST_LOG_STD, HIGHEST_LOG_STD)
    spread_BA = log_std_BA.exp() * noise_BA
    unsquashed_BA = mean_BA + spread_BA
    # log(1 - tanh(z)^2) = 2 (log 2 - z - softplus(-2 z)), which stays finite for large z.
    log_slope_BA = 2.0 * (_LOG_2 - unsquashed_BA - F.softplus(-2.0 * unsquashed_BA))
    log_prob_BA = -0.5 * noise_BA.square() - log_std_BA - _HALF_LOG_2PI - log_slope_BA
    return Sample(
        action_BA=unsquashed_BA.tanh(),
        log_prob_B=log_prob_BA.sum(-1),
        spread_BA=spread_BA,
        free_BA=(log_std_BA == raw_log_std_BA).float(),
    )


class SquashedGaussianActor(BoxActor):
    """A stochastic actor: the action is the tanh of a Gaussian sample (arXiv:1801.01290).

    The last layer's outputs are the mean and the logarithm of the standard deviation, which is
    clipped to -20 to 2, as in the authors' program.
    """

    outputs_per_action = 2

    def act(self, obs_NI: FloatArray) -> FloatArray:
        """Compute the tanh of the means, [N, A], as an array."""
        mean_NA, _ = np.split(self._look(obs_NI), 2, axis=1)
        action_NA: FloatArray = np.tanh(mean_NA)
        return action_NA

    def draw(self, obs_NI: FloatArray, noise_NA: FloatArray) -> FloatArray:
        """Sample an action for each of few or many observations, [N, A], as an array.

        Args:
            obs_NI: The observations.
            noise_NA: Standard normal numbers.
        """
        mean_NA, log_std_NA = np.split(self._look(obs_NI), 2, axis=1)
        std_NA = np.exp(np.clip(log_std_NA, LOWEST_LOG_STD, HIGHEST_LOG_STD))
        action_NA: FloatArray = np.tanh(mean_NA + std_NA * noise_NA)
        return action_NA

    def sample(self, obs_BI: Tensor, noise_BA: Tensor) -> tuple[Sample, list[Tensor]]:
        """Sample an action for each observation; return also the activations for `backward`.

        Args:
            obs_BI: The observations.
            noise_BA: Standard normal numbers.
        """
        raw, outputs = self._forward(obs_BI)
        return squash(raw, noise_BA), outputs

    def backward(self, outputs: Sequence[Tensor], raw_grad: Tensor) -> None:
        """Write the gradients of the weights, given what `Sample.backward` returned."""
        self._backward(outputs, raw_grad)
