"""Actors for box actions: from an observation to numbers from -1 to 1.

One gives the action itself, the other a distribution of actions. Forward and backward are written
out, as in `torso`; a test compares both with autograd.
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
    """Hidden layers with ReLU between them, and a linear one.

    Args:
        weights: Holds the tensors of `shapes`.
        grads: Takes their gradients.
        sizes: The length of an observation, then the widths of the hidden layers.
    """

    outputs_per_action: ClassVar[int]
    """How many numbers the last layer gives for each of an action's."""

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
        """Compute what the last layer gives, and what `_backward` needs."""
        outputs = self._hidden.forward(obs_BI)
        return self._last.forward(outputs[-1]), outputs

    def _backward(self, outputs: Sequence[Tensor], grad_BO: Tensor) -> None:
        self._last.backward(outputs[-1], grad_BO)
        self._hidden.backward(outputs, self._last.backward_input(grad_BO))

    def _look(self, obs_NI: FloatArray) -> FloatArray:
        """Compute what the last layer gives, as an array."""
        if len(obs_NI) <= self._max_numpy_rows:
            return self._last.forward_numpy(self._hidden.forward_numpy(obs_NI))
        found_NO, _ = self._forward(torch.from_numpy(obs_NI).to(self._device))
        array_NO: FloatArray = found_NO.cpu().numpy()
        return array_NO


class DeterministicActor(BoxActor):
    """An action for each observation: the tanh of what the last layer gives."""

    outputs_per_action = 1

    def act(self, obs_NI: FloatArray) -> FloatArray:
        """Compute the actions of few or many observations, [N, A], as an array."""
        raw_NA = self._look(obs_NI)
        return np.tanh(raw_NA, out=raw_NA)

    def forward(self, obs_BI: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Compute the actions, [B, A], and what `backward` needs."""
        raw_BA, outputs = self._forward(obs_BI)
        return raw_BA.tanh_(), outputs

    def backward(self, outputs: Sequence[Tensor], action_BA: Tensor, grad_BA: Tensor) -> None:
        """Write the gradients of the weights, given that of the actions."""
        self._backward(outputs, torch.ops.aten.tanh_backward(grad_BA, action_BA))


@dataclass(frozen=True, slots=True)
class Sample:
    """Actions drawn from a squashed Gaussian, and what the way back to its parameters needs."""

    action_BA: Tensor
    """From -1 to 1."""
    log_prob_B: Tensor
    """The logarithm of the density of each."""
    spread_BA: Tensor
    """How far each was drawn from the mean, before the tanh: its gradient by the log of std."""
    free_BA: Tensor
    """1 where the log of std was within its limits, else 0."""

    def backward(self, grad_BA: Tensor, *, log_prob_grad: float | Tensor) -> Tensor:
        """Compute the gradient of mean and log of std, as the last layer gives them.

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
    """Draw actions from what the last layer gives: means, and behind them logs of std.

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
    """A distribution of actions for each observation: the tanh of a Gaussian (arXiv:1801.01290).

    The last layer gives the mean and the logarithm of the standard deviation, which is kept
    from -20 to 2, as the authors' program does.
    """

    outputs_per_action = 2

    def act(self, obs_NI: FloatArray) -> FloatArray:
        """Compute the actions that the means stand for, [N, A], as an array."""
        mean_NA, _ = np.split(self._look(obs_NI), 2, axis=1)
        action_NA: FloatArray = np.tanh(mean_NA)
        return action_NA

    def draw(self, obs_NI: FloatArray, noise_NA: FloatArray) -> FloatArray:
        """Draw an action for each of few or many observations, [N, A], as an array.

        Args:
            obs_NI: The observations.
            noise_NA: Standard normal numbers.
        """
        mean_NA, log_std_NA = np.split(self._look(obs_NI), 2, axis=1)
        std_NA = np.exp(np.clip(log_std_NA, LOWEST_LOG_STD, HIGHEST_LOG_STD))
        action_NA: FloatArray = np.tanh(mean_NA + std_NA * noise_NA)
        return action_NA

    def sample(self, obs_BI: Tensor, noise_BA: Tensor) -> tuple[Sample, list[Tensor]]:
        """Draw an action for each observation; return also what `backward` needs.

        Args:
            obs_BI: The observations.
            noise_BA: Standard normal numbers.
        """
        raw, outputs = self._forward(obs_BI)
        return squash(raw, noise_BA), outputs

    def backward(self, outputs: Sequence[Tensor], raw_grad: Tensor) -> None:
        """Write the gradients of the weights, given what `Sample.backward` returned."""
        self._backward(outputs, raw_grad)
