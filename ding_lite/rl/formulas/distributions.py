"""Action distributions of policies, with the gradients written out.

`likelihood` and `backward`, which learning needs, compute on arrays or tensors, on the device of a
network's outputs. Actions are drawn on the CPU, where environments need them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Box, MultiBinary, MultiDiscrete
from torch import Tensor

from ding_lite.rl.batch import Array, FloatArray, NumpyArray
from ding_lite.rl.host_or_device import CPU, AnyArray, as_tensor, computable, floats, namespace, on
from ding_lite.rl.spec import EnvSpec, action_bounds

_IMPOSSIBLE = -1e9
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
MIN_LOG_STD, MAX_LOG_STD = -20.0, 2.0
"""The limits of the logarithms of standard deviations; beyond them their gradient is 0."""
Drawn: TypeAlias = tuple[NumpyArray, FloatArray]
"""Actions and their log-probabilities."""


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Log-probabilities of actions, and entropies."""

    log_prob_B: AnyArray
    """The logarithms of the probabilities, or densities, of the actions."""
    entropy_B: AnyArray
    """The entropy of each action's distribution, in nats."""
    saved: tuple[Any, ...]


class Distribution(Protocol):
    """Maps a network's outputs to actions, and gradients of log-probabilities to the outputs."""

    num_outputs: int

    def best(self, outputs_ND: FloatArray) -> NumpyArray:
        """Return the most likely actions, within the bounds of the space."""

    def draw(self, outputs_ND: FloatArray, rng: np.random.Generator) -> Drawn:
        """Sample actions; return them and their log-probabilities."""

    def likelihood(self, outputs_BD: AnyArray, action: AnyArray) -> Likelihood:
        """Return the log-probabilities of actions, and the entropies."""

    def backward(
        self, of: Likelihood, log_prob_grad_B: AnyArray, entropy_grad_B1: AnyArray = None
    ) -> AnyArray:
        """Return the gradient of the outputs, given those of log_prob and of entropies, if any.

        The gradients of the distribution's own weights are written to their memory.
        """


class Categorical:
    """The categorical distribution over discrete actions, by their logits."""

    def __init__(self, num_actions: int) -> None:
        self.num_outputs = num_actions

    def best(self, outputs_ND: FloatArray) -> NumpyArray:
        best_N: NumpyArray = outputs_ND.argmax(axis=1)
        return best_N

    def draw(self, outputs_ND: FloatArray, rng: np.random.Generator) -> Drawn:
        size = len(outputs_ND)
        shifted_ND = outputs_ND - outputs_ND.max(axis=1, keepdims=True)
        weight_ND = np.exp(shifted_ND)
        running_ND = weight_ND.cumsum(axis=1)
        total_N = running_ND[:, -1]
        # Without the last sum, so that rounding gives no action beyond the last one.
        mark_N = rng.random(size, dtype=np.float32) * total_N
        action_N = (mark_N[:, None] >= running_ND[:, :-1]).sum(axis=1)
        log_prob_N: FloatArray = shifted_ND[np.arange(size), action_N] - np.log(total_N)
        return action_N, log_prob_N

    def likelihood(self, outputs_BD: AnyArray, action: AnyArray) -> Likelihood:
        xp = namespace(outputs_BD)
        shifted_BD = outputs_BD - xp.amax(outputs_BD, axis=1, keepdims=True)
        weight_BD = xp.exp(shifted_BD)
        total_B1 = weight_BD.sum(axis=1, keepdims=True)
        log_prob_BD = shifted_BD - xp.log(total_B1)
        prob_BD = weight_BD / total_B1
        entropy_B = -xp.einsum("bd,bd->b", prob_BD, log_prob_BD)
        rows_B = xp.arange(len(outputs_BD), device=outputs_BD.device)
        log_prob_B = log_prob_BD[rows_B, action]
        return Likelihood(log_prob_B, entropy_B, (prob_BD, log_prob_BD, rows_B, action))

    def backward(
        self, of: Likelihood, log_prob_grad_B: AnyArray, entropy_grad_B1: AnyArray = None
    ) -> AnyArray:
        prob_BD, log_prob_BD, rows_B, action_B = of.saved
        grad_BD = prob_BD * -log_prob_grad_B[:, None]
        if entropy_grad_B1 is not None:
            grad_BD -= entropy_grad_B1 * prob_BD * (log_prob_BD + of.entropy_B[:, None])
        grad_BD[rows_B, action_B] += log_prob_grad_B
        return grad_BD


class MultiCategorical:
    """The product of categorical distributions, for several discrete choices at once."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.num_outputs = sum(sizes)
        self._parts = [Categorical(size) for size in sizes]
        ends = [0, *accumulate(sizes)]
        self._bounds = [slice(*pair) for pair in pairwise(ends)]

    def best(self, outputs_ND: FloatArray) -> NumpyArray:
        return np.stack([part.best(own) for part, own in self._each(outputs_ND)], axis=1)

    def draw(self, outputs_ND: FloatArray, rng: np.random.Generator) -> Drawn:
        drawn = [part.draw(own, rng) for part, own in self._each(outputs_ND)]
        log_prob_N: FloatArray = np.sum([log_prob for _, log_prob in drawn], axis=0)
        return np.stack([action for action, _ in drawn], axis=1), log_prob_N

    def likelihood(self, outputs_BD: AnyArray, action: AnyArray) -> Likelihood:
        each = [
            part.likelihood(own, action[:, index])
            for index, (part, own) in enumerate(self._each(outputs_BD))
        ]
        log_prob_B = sum(one.log_prob_B for one in each)
        entropy_B = sum(one.entropy_B for one in each)
        return Likelihood(log_prob_B, entropy_B, tuple(each))

    def backward(
        self, of: Likelihood, log_prob_grad_B: AnyArray, entropy_grad_B1: AnyArray = None
    ) -> AnyArray:
        grads = [
            part.backward(each, log_prob_grad_B, entropy_grad_B1)
            for part, each in zip(self._parts, of.saved, strict=True)
        ]
        return namespace(log_prob_grad_B).concatenate(grads, axis=1)

    def _each(self, outputs_ND: AnyArray) -> Iterator[tuple[Categorical, AnyArray]]:
        own = (outputs_ND[:, bounds] for bounds in self._bounds)
        return zip(self._parts, own, strict=True)


class Bernoullis:
    """The product of Bernoulli distributions, for several flags at once, by their logits."""

    def __init__(self, size: int) -> None:
        self.num_outputs = size

    def best(self, outputs_ND: FloatArray) -> NumpyArray:
        return (outputs_ND > 0.0).astype(np.int64)

    def draw(self, outputs_ND: FloatArray, rng: np.random.Generator) -> Drawn:
        mark_ND = rng.random(outputs_ND.shape, dtype=np.float32)
        action_ND = (mark_ND < _sigmoid(outputs_ND)).astype(np.int64)
        log_prob_N: FloatArray = _flag_log_prob(outputs_ND, action_ND)
        return action_ND, log_prob_N

    def likelihood(self, outputs_BD: AnyArray, action: AnyArray) -> Likelihood:
        prob_BD = _sigmoid(outputs_BD)
        # The entropy of a flag is log(1 + exp(z)) - z p.
        entropy_B = (_softplus(outputs_BD) - outputs_BD * prob_BD).sum(axis=1)
        log_prob_B = _flag_log_prob(outputs_BD, action)
        return Likelihood(log_prob_B, entropy_B, (prob_BD, outputs_BD, floats(action)))

    def backward(
        self, of: Likelihood, log_prob_grad_B: AnyArray, entropy_grad_B1: AnyArray = None
    ) -> AnyArray:
        prob_BD, logit_BD, action_BD = of.saved
        grad_BD = (action_BD - prob_BD) * log_prob_grad_B[:, None]
        if entropy_grad_B1 is not None:
            grad_BD -= entropy_grad_B1 * logit_BD * prob_BD * (1.0 - prob_BD)
        return grad_BD


class BoxUnits:
    """The units of a box of actions: 0 is the middle, 1 the upper and -1 the lower bound.

    Without bounds the units are those of the environment.
    """

    def __init__(self, space: Box, *, device: torch.device = CPU) -> None:
        self.shape = space.shape
        self.low, self.high = (end.reshape(-1) for end in action_bounds(space))
        is_bounded = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = (np.where(is_bounded, end, 0.0) for end in (self.low, self.high))
        # Without two bounds the middle is 0, or a unit inside of the bound if 0 is outside.
        inner_low, inner_high = self.low + np.float32(1.0), self.high - np.float32(1.0)
        start = np.where(self.low > 0.0, inner_low, np.where(self.high < 0.0, inner_high, 0.0))
        self.middle_D = np.where(is_bounded, low / 2 + high / 2, start).astype(np.float32)
        # If both bounds are equal, or one is missing, the unit is that of the environment.
        self.unit_D = np.where(high > low, high / 2 - low / 2, 1.0).astype(np.float32)
        self.log_unit = float(np.log(self.unit_D).sum())
        self._device = device
        self._middle_there: AnyArray = on(device, self.middle_D)
        self._unit_there: AnyArray = on(device, self.unit_D)

    def from_unit(self, unit_ND: FloatArray) -> NumpyArray:
        """Return actions within their bounds, [N, ...], given them in these units."""
        action_ND = self.middle_D + self.unit_D * unit_ND
        return np.clip(action_ND, self.low, self.high).reshape(-1, *self.shape)

    def draw_normal(
        self, mean_ND: FloatArray, log_std_ND: FloatArray, rng: np.random.Generator
    ) -> Drawn:
        noise_ND = rng.standard_normal(mean_ND.shape, dtype=np.float32)
        action_ND = self.middle_D + self.unit_D * (mean_ND + np.exp(log_std_ND) * noise_ND)
        return action_ND.reshape(-1, *self.shape), self.log_density(noise_ND, log_std_ND)

    def log_density(self, noise: AnyArray, log_std: AnyArray) -> AnyArray:
        """Return normal log-densities, [...], of actions with this standardised noise, [..., D]."""
        squares = namespace(noise).linalg.vecdot(noise, noise)
        constant = noise.shape[-1] * HALF_LOG_2PI + self.log_unit
        return -0.5 * squares - (log_std.sum(-1) + constant)

    def normal_entropy(self, log_std: AnyArray) -> AnyArray:
        return log_std.sum(-1) + log_std.shape[-1] * (0.5 + HALF_LOG_2PI) + self.log_unit

    def to_unit(self, action: Array) -> AnyArray:
        """Return actions, [B, ...], in these units, [B, D], on the device."""
        flat_BD = on(self._device, action).reshape(len(action), len(self.unit_D))
        found_BD = floats(flat_BD) - self._middle_there
        found_BD /= self._unit_there
        return found_BD


class Gaussian(BoxUnits):
    """The diagonal normal distribution: a network's mean, and a learned standard deviation.

    Args:
        log_std: The logarithms of the deviations, in units of the space: [D], or [G, D] for several
            members with the same number of rows each.
        grad: The memory for their gradient.
    """

    def __init__(self, space: Box, log_std: Tensor, grad: Tensor) -> None:
        super().__init__(space, device=log_std.device)
        self.num_outputs = math.prod(space.shape)
        self._log_std_GD, self._grad_GD = (t.view(-1, self.num_outputs) for t in (log_std, grad))

    def best(self, outputs_ND: FloatArray) -> NumpyArray:
        return self.from_unit(outputs_ND)

    def draw(self, outputs_ND: FloatArray, rng: np.random.Generator) -> Drawn:
        return self.draw_normal(outputs_ND, self._log_std_GD.cpu().numpy(), rng)

    def likelihood(self, outputs_BD: AnyArray, action: AnyArray) -> Likelihood:
        xp, log_std_G1D = namespace(outputs_BD), computable(self._log_std_GD)[:, None]
        std_G1D = xp.exp(log_std_G1D)
        shape_GBD = (len(std_G1D), -1, self.num_outputs)
        noise_GBD = (self.to_unit(action) - outputs_BD).reshape(shape_GBD)
        noise_GBD /= std_G1D
        entropy_GB = xp.zeros_like(noise_GBD[..., 0]) + self.normal_entropy(log_std_G1D)
        log_prob_B = self.log_density(noise_GBD, log_std_G1D).reshape(-1)
        return Likelihood(log_prob_B, entropy_GB.reshape(-1), (noise_GBD, std_G1D))

    def backward(
        self, of: Likelihood, log_prob_grad_B: AnyArray, entropy_grad_B1: AnyArray = None
    ) -> AnyArray:
        noise_GBD, std_G1D = of.saved
        grad_GB1 = log_prob_grad_B.reshape(len(std_G1D), -1, 1)
        each_GBD = grad_GB1 * (noise_GBD * noise_GBD - 1.0)
        if entropy_grad_B1 is not None:
            each_GBD += entropy_grad_B1.reshape(grad_GB1.shape)
        self._grad_GD.copy_(as_tensor(each_GBD.sum(1)))
        return (grad_GB1 * noise_GBD / std_G1D).reshape(-1, self.num_outputs)


class StateGaussian(BoxUnits):
    """The diagonal normal distribution with means and log standard deviations from a network.

    The outputs are the D means, then the D logarithms, in the units of the action space.
    """

    def __init__(self, space: Box, *, device: torch.device = CPU) -> None:
        super().__init__(space, device=device)
        self.num_outputs = 2 * len(self.unit_D)

    def best(self, outputs_ND: FloatArray) -> NumpyArray:
        return self.from_unit(self._parts(outputs_ND)[0])

    def draw(self, outputs_ND: FloatArray, rng: np.random.Generator) -> Drawn:
        return self.draw_normal(*self._parts(outputs_ND), rng)

    def likelihood(self, outputs_BD: AnyArray, action: AnyArray) -> Likelihood:
        mean_BA, log_std_BA = self._parts(outputs_BD)
        std_BA = namespace(outputs_BD).exp(log_std_BA)
        noise_BA = (self.to_unit(action) - mean_BA) / std_BA
        raw_BA = outputs_BD[:, mean_BA.shape[1] :]
        is_free_BA = (raw_BA > MIN_LOG_STD) & (raw_BA < MAX_LOG_STD)
        saved = (noise_BA, std_BA, is_free_BA)
        log_prob_B = self.log_density(noise_BA, log_std_BA)
        return Likelihood(log_prob_B, self.normal_entropy(log_std_BA), saved)

    def backward(
        self, of: Likelihood, log_prob_grad_B: AnyArray, entropy_grad_B1: AnyArray = None
    ) -> AnyArray:
        noise_BA, std_BA, is_free_BA = of.saved
        grad_B1 = log_prob_grad_B[:, None]
        of_spread_BA = grad_B1 * (noise_BA * noise_BA - 1.0)
        if entropy_grad_B1 is not None:
            of_spread_BA += entropy_grad_B1
        of_spread_BA *= is_free_BA
        return namespace(noise_BA).concatenate((grad_B1 * noise_BA / std_BA, of_spread_BA), axis=1)

    def _parts(self, outputs_ND: AnyArray) -> tuple[AnyArray, AnyArray]:
        half = len(self.unit_D)
        return outputs_ND[:, :half], outputs_ND[:, half:].clip(MIN_LOG_STD, MAX_LOG_STD)


def make_distribution(spec: EnvSpec) -> Distribution:
    space = spec.action_space
    if isinstance(space, MultiDiscrete):
        return MultiCategorical(space.nvec.tolist())
    if isinstance(space, MultiBinary):
        return Bernoullis(num_outputs(spec))
    return Categorical(spec.num_choices)


def num_outputs(spec: EnvSpec) -> int:
    return spec.num_choices or math.prod(spec.action_shape)


def legal_logits(logit_ND: AnyArray, mask_ND: AnyArray | None) -> AnyArray:
    """Return logits that give actions that are not legal the probability 0.

    The gradients of these logits are 0, and they do not contribute to the entropy (Huang and
    Ontanon 2022, arXiv:2006.14171).
    """
    if mask_ND is None:
        return logit_ND
    # A finite number, because 0 times an infinite logarithm is NaN.
    return namespace(logit_ND).where(mask_ND, logit_ND, _IMPOSSIBLE)


def _sigmoid(logit_ND: AnyArray) -> AnyArray:
    return 0.5 * (namespace(logit_ND).tanh(0.5 * logit_ND) + 1.0)


def _softplus(logit_ND: AnyArray) -> AnyArray:
    xp = namespace(logit_ND)
    return xp.logaddexp(xp.zeros_like(logit_ND), logit_ND)


def _flag_log_prob(logit_ND: AnyArray, action_ND: AnyArray) -> AnyArray:
    """Return the sum of the flags' log-probabilities, a z - log(1 + exp(z)) each."""
    return (floats(action_ND) * logit_ND - _softplus(logit_ND)).sum(axis=1)
