"""Action distributions of policies, with the gradients written out.

A network's outputs come as arrays on the CPU, and their gradients go back as arrays: they are
small beside the work within the network, on any device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from gymnasium.spaces import Box

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.networks.flat import FlatWeights
from ding_lite.rl.spec import EnvSpec

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Log-probabilities of actions, and entropies."""

    log_prob_B: FloatArray
    """The logarithms of the probabilities, or densities, of the actions."""
    entropy_B: FloatArray
    """The entropy of each action's distribution, in nats."""
    saved: tuple[FloatArray, ...]
    """Arrays that `backward` needs."""


class Distribution(Protocol):
    """Maps a network's outputs to actions, and their gradient to that of the outputs."""

    num_outputs: int
    """The number of network outputs for each observation."""

    def best(self, outputs_ND: FloatArray) -> NumpyArray:
        """Return the likeliest actions."""

    def draw(
        self, outputs_ND: FloatArray, rng: np.random.Generator
    ) -> tuple[NumpyArray, FloatArray]:
        """Sample actions; return them and their log-probabilities."""

    def judge(self, outputs_BD: FloatArray, action: NumpyArray) -> Likelihood:
        """Return the log-probabilities of actions, and the entropies."""

    def backward(
        self, of: Likelihood, log_prob_grad_B: FloatArray, entropy_grad: float
    ) -> FloatArray:
        """Return the gradient of the outputs, given those of log_prob and of each entropy.

        The gradients of weights of its own are written where they belong.
        """


class Categorical:
    """The categorical distribution over discrete actions, by their logits.

    Args:
        num_actions: How many there are.

    Example:
        >>> choice = Categorical(2)
        >>> likely = choice.judge(np.zeros((1, 2), dtype=np.float32), np.array([1]))
        >>> np.exp(likely.log_prob_B).tolist(), likely.entropy_B.round(3).tolist()
        ([0.5], [0.6930000185966492])
    """

    def __init__(self, num_actions: int) -> None:
        """Set the number of actions."""
        self.num_outputs = num_actions

    def best(self, outputs_ND: FloatArray) -> NumpyArray:
        """Return the likeliest actions."""
        best_N: NumpyArray = outputs_ND.argmax(axis=1)
        return best_N

    def draw(
        self, outputs_ND: FloatArray, rng: np.random.Generator
    ) -> tuple[NumpyArray, FloatArray]:
        """Sample actions; return them and their log-probabilities."""
        size = len(outputs_ND)
        shifted_ND = outputs_ND - outputs_ND.max(axis=1, keepdims=True)
        weight_ND = np.exp(shifted_ND)
        running_ND = weight_ND.cumsum(axis=1)
        total_N = running_ND[:, -1]
        # Below the total, so that the last action is the last resort.
        mark_N = rng.random(size, dtype=np.float32) * total_N
        action_N = (mark_N[:, None] >= running_ND[:, :-1]).sum(axis=1)
        log_prob_N: FloatArray = shifted_ND[np.arange(size), action_N] - np.log(total_N)
        return action_N, log_prob_N

    def judge(self, outputs_BD: FloatArray, action: NumpyArray) -> Likelihood:
        """Return the log-probabilities of actions, and the entropies."""
        shifted_BD = outputs_BD - outputs_BD.max(axis=1, keepdims=True)
        weight_BD = np.exp(shifted_BD)
        total_B1 = weight_BD.sum(axis=1, keepdims=True)
        log_prob_BD = shifted_BD - np.log(total_B1)
        prob_BD = weight_BD / total_B1
        entropy_B = -np.einsum("bd,bd->b", prob_BD, log_prob_BD)
        rows_B = np.arange(len(outputs_BD))
        log_prob_B = log_prob_BD[rows_B, action]
        return Likelihood(log_prob_B, entropy_B, (prob_BD, log_prob_BD, action))

    def backward(
        self, of: Likelihood, log_prob_grad_B: FloatArray, entropy_grad: float
    ) -> FloatArray:
        """Return the gradient of the logits."""
        prob_BD, log_prob_BD, action_B = of.saved
        grad_BD: FloatArray = prob_BD * -log_prob_grad_B[:, None]
        if entropy_grad:
            grad_BD -= np.float32(entropy_grad) * prob_BD * (log_prob_BD + of.entropy_B[:, None])
        grad_BD[np.arange(len(grad_BD)), action_B] += log_prob_grad_B
        return grad_BD


class Gaussian:
    """The diagonal normal distribution: a network's mean, and a learned standard deviation.

    Means are in units of the action space: 0 is its middle, 1 its upper and -1 its lower bound.
    Where there is no bound, units are those of the environment.

    Args:
        space: The action space.
        weights: Holds the tensor of `shapes`.
        grads: Takes its gradient.
    """

    NAME = "actor.log_std"

    def __init__(self, space: Box, weights: FlatWeights, grads: FlatWeights) -> None:
        """Take the tensor `actor.log_std`."""
        self._shape = space.shape
        self.num_outputs = math.prod(space.shape)
        self._log_std_D, self._grad_D = weights[self.NAME], grads[self.NAME]
        self._low: NumpyArray = space.low.reshape(-1).astype(np.float32)
        self._high: NumpyArray = space.high.reshape(-1).astype(np.float32)
        is_bounded = np.isfinite(self._low) & np.isfinite(self._high)
        low, high = (np.where(is_bounded, end, 0.0) for end in (self._low, self._high))
        self._middle_D = (low / 2 + high / 2).astype(np.float32)
        # Where both bounds are equal, or there is none, a unit is that of the environment.
        self._unit_D = np.where(high > low, high / 2 - low / 2, 1.0).astype(np.float32)
        self._log_unit = float(np.log(self._unit_D).sum())

    @classmethod
    def shapes(cls, space: Box) -> dict[str, tuple[int, ...]]:
        """Return the shape of the tensor of such a distribution, by name."""
        return {cls.NAME: (math.prod(space.shape),)}

    def best(self, outputs_ND: FloatArray) -> NumpyArray:
        """Return the likeliest actions, within the bounds of the space."""
        action_ND = self._middle_D + self._unit_D * outputs_ND
        return np.clip(action_ND, self._low, self._high).reshape(-1, *self._shape)

    def draw(
        self, outputs_ND: FloatArray, rng: np.random.Generator
    ) -> tuple[NumpyArray, FloatArray]:
        """Sample actions; return them and their log-densities."""
        log_std_D = self._log_std()
        noise_ND = rng.standard_normal(outputs_ND.shape, dtype=np.float32)
        action_ND = self._middle_D + self._unit_D * (outputs_ND + np.exp(log_std_D) * noise_ND)
        return action_ND.reshape(-1, *self._shape), self._log_density(noise_ND, log_std_D)

    def judge(self, outputs_BD: FloatArray, action: NumpyArray) -> Likelihood:
        """Return the log-probabilities of actions, and the entropies."""
        log_std_D = self._log_std()
        std_D: FloatArray = np.exp(log_std_D)
        action_BD = action.reshape(len(outputs_BD), -1)
        noise_BD: FloatArray = action_BD.astype(np.float32) - self._middle_D
        noise_BD /= self._unit_D
        noise_BD -= outputs_BD
        noise_BD /= std_D
        entropy = float(log_std_D.sum()) + self.num_outputs * (0.5 + _HALF_LOG_2PI) + self._log_unit
        entropy_B = np.full(len(outputs_BD), entropy, dtype=np.float32)
        return Likelihood(self._log_density(noise_BD, log_std_D), entropy_B, (noise_BD, std_D))

    def backward(
        self, of: Likelihood, log_prob_grad_B: FloatArray, entropy_grad: float
    ) -> FloatArray:
        """Return the gradient of the means, and write that of the spread."""
        noise_BD, std_D = of.saved
        grad_D = log_prob_grad_B @ (noise_BD * noise_BD - 1.0) + len(noise_BD) * entropy_grad
        self._grad_D.copy_(torch.from_numpy(grad_D.astype(np.float32)))
        grad_BD: FloatArray = log_prob_grad_B[:, None] * noise_BD / std_D
        return grad_BD

    def _log_std(self) -> FloatArray:
        log_std_D: FloatArray = self._log_std_D.cpu().numpy()
        return log_std_D

    def _log_density(self, noise_ND: FloatArray, log_std_D: FloatArray) -> FloatArray:
        constant = float(log_std_D.sum()) + self.num_outputs * _HALF_LOG_2PI + self._log_unit
        squares_N = np.einsum("ij,ij->i", noise_ND, noise_ND)
        log_prob_N: FloatArray = np.float32(-0.5) * squares_N - np.float32(constant)
        return log_prob_N


def distribution_shapes(spec: EnvSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that the action distribution itself has, by name."""
    space = spec.action_space
    return Gaussian.shapes(space) if isinstance(space, Box) else {}


def make_distribution(spec: EnvSpec, weights: FlatWeights, grads: FlatWeights) -> Distribution:
    """Make the distribution for the action space: normal, or categorical."""
    space = spec.action_space
    return Gaussian(space, weights, grads) if isinstance(space, Box) else Categorical(int(space.n))


def num_outputs(spec: EnvSpec) -> int:
    """Return how many network outputs the action distribution takes."""
    return spec.num_actions or math.prod(spec.action_shape)
