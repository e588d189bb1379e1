"""Actors for box actions, deterministic and squashed Gaussian, with actions from -1 to 1.

Forward and backward are written out, as in `layers`; a test compares both with autograd.

Shape letters: G policies that learn as one computation (one if a policy learns alone), B rows of
each, O outputs of the last layer, A numbers of an action, N observations of one policy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.formulas.distributions import HALF_LOG_2PI, MAX_LOG_STD, MIN_LOG_STD
from ding_lite.rl.host_or_device import AnyArray, as_tensor, computable, floats, namespace
from ding_lite.rl.networks.activations import Activation
from ding_lite.rl.networks.layers import MLP, MLPOutputs, names_of
from ding_lite.rl.packing import Tree, as_floats
from ding_lite.rl.recorded.box import check_actions
from ding_lite.rl.spec import EnvSpec, action_bounds
from ding_lite.rl.weights.flat import FlatWeights

_LOG_2 = math.log(2.0)


class ActorBody(Protocol):
    """Computes the numbers from which an actor makes actions, and the gradients of its weights."""

    def forward(self, obs: Tensor, /) -> Tensor:
        """Compute the outputs, [G, B, O]; nothing is recorded."""

    def forward_saving(self, obs: Tensor, /) -> tuple[Tensor, Any]:
        """Compute the outputs, and return the activations for `backward`."""

    def backward(self, saved: Any, grad_GBO: Tensor, /) -> None:  # noqa: ANN401 - each its own
        """Write the gradients of the weights, given those of the outputs."""

    def infer(self, obs: NumpyArray, /) -> FloatArray:
        """Compute the outputs of observations as an array.

        They are [N, O] for a single policy, [G, N, O] for several.
        """


class MLPBody(MLPOutputs):
    """Hidden layers and a linear output layer of one policy."""

    def __init__(
        self,
        weights: FlatWeights,
        grads: FlatWeights,
        *,
        depth: int,
        activation: Activation = "relu",
        see: Callable[[Any], Any] = as_floats,
    ) -> None:
        self._see = see
        names = names_of("torso", depth)
        super().__init__(MLP(weights, grads, names, "head", activation=activation))

    def forward_saving(self, obs: Tensor) -> tuple[Tensor, list[Tensor]]:
        raw_BO, outputs = super().forward_saving(self._see(obs))
        return raw_BO.unsqueeze(0), outputs

    def backward(self, saved: Sequence[Tensor], grad_1BO: Tensor) -> None:
        super().backward(saved, grad_1BO[0])

    def infer(self, obs: NumpyArray) -> FloatArray:
        return self._layers.infer(self._see(obs))


class BoxActor(ABC):
    """An actor for box actions."""

    outputs_per_action: ClassVar[int]
    """The outputs of the body per dimension of the action."""

    def __init__(self, body: ActorBody) -> None:
        self._body = body

    @abstractmethod
    def act(self, obs: NumpyArray) -> FloatArray:
        """Compute the best actions for observations as an array.

        They are [N, A] for a single policy, [G, N, A] for several.
        """


class DeterministicActor(BoxActor):
    """A deterministic actor: the action is the tanh of the body's output."""

    outputs_per_action = 1

    def act(self, obs: NumpyArray) -> FloatArray:
        raw = self._body.infer(obs)
        return np.tanh(raw, out=raw)

    def forward(self, obs: Tensor) -> Tensor:
        return self._body.forward(obs).tanh_()

    def forward_saving(self, obs: Tensor) -> tuple[Tensor, Any]:
        raw_GBA, saved = self._body.forward_saving(obs)
        return raw_GBA.tanh_(), saved

    def backward(self, saved: Any, action_GBA: Tensor, grad_GBA: Tensor) -> None:  # noqa: ANN401
        self._body.backward(saved, torch.ops.aten.tanh_backward(grad_GBA, action_GBA))


class OwnActor(DeterministicActor):
    """A user's deterministic actor: the output of its module is the action, from -1 to 1.

    Raises:
        ConfigError: If an action is beyond -1 to 1. Learning checks this only on a CPU.
    """

    def __init__(self, body: ActorBody, spec: EnvSpec) -> None:
        super().__init__(body)
        self._spec = spec

    def act(self, obs: NumpyArray) -> FloatArray:
        action_NA = self._body.infer(obs)
        check_actions(torch.from_numpy(action_NA), self._spec)
        return action_NA

    def forward(self, obs: Tensor) -> Tensor:
        return self._body.forward(obs)

    def forward_saving(self, obs: Tensor) -> tuple[Tensor, Any]:
        action_GBA, saved = self._body.forward_saving(obs)
        if action_GBA.device.type == "cpu":  # on a device the host would have to wait
            check_actions(action_GBA, self._spec)
        return action_GBA, saved

    def backward(self, saved: Any, action_GBA: Tensor, grad_GBA: Tensor) -> None:  # noqa: ANN401
        del action_GBA
        self._body.backward(saved, grad_GBA)


@dataclass(frozen=True, slots=True)
class Sample:
    """Actions sampled from a squashed Gaussian, with the values that its gradient needs.

    Arrays on a CPU, else tensors.
    """

    action_GBA: AnyArray
    """The actions, from -1 to 1."""
    log_prob_GB: AnyArray
    """The log-density of each action."""
    spread_GBA: AnyArray
    """The distance of each action from the mean before the tanh, which is its derivative by the
    log of std."""
    free_GBA: AnyArray
    """1 where the log of std was within its limits, else 0."""

    def backward(self, grad_GBA: Tensor, *, log_prob_grad: AnyArray) -> Tensor:
        """Compute the gradient of mean and log of std, the outputs of the last layer."""
        action_GBA, grad = self.action_GBA, computable(grad_GBA)
        mean_grad_GBA = grad * (1.0 - action_GBA * action_GBA)
        mean_grad_GBA += (2.0 * log_prob_grad) * action_GBA  # of -log(1 - tanh(z)^2)
        log_std_grad_GBA = (mean_grad_GBA * self.spread_GBA - log_prob_grad) * self.free_GBA
        xp = namespace(action_GBA)
        return as_tensor(xp.concatenate((mean_grad_GBA, log_std_grad_GBA), -1))


def squash(raw: Tensor, noise_GBA: Tensor) -> Sample:
    """Sample actions from the last layer's outputs: means, then logs of std."""
    outputs, noise_GBA = computable(raw), computable(noise_GBA)
    xp, raw_log_std_GBA = namespace(outputs), outputs[..., outputs.shape[-1] // 2 :]
    unsquashed_GBA, spread_GBA, log_std_GBA = _drawn(outputs, noise_GBA)
    # log(1 - tanh(z)^2) = 2 (log 2 - |z| - log(1 + exp(-2 |z|))), which stays finite for large z.
    distance_GBA = abs(unsquashed_GBA)
    log_slope_GBA = 2.0 * (_LOG_2 - distance_GBA - xp.log1p(xp.exp(-2.0 * distance_GBA)))
    log_prob_GBA = -0.5 * noise_GBA * noise_GBA - log_std_GBA - HALF_LOG_2PI - log_slope_GBA
    return Sample(
        action_GBA=xp.tanh(unsquashed_GBA),
        log_prob_GB=log_prob_GBA.sum(-1),
        spread_GBA=spread_GBA,
        free_GBA=floats(log_std_GBA == raw_log_std_GBA),
    )


def _drawn(outputs: AnyArray, noise: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return the draws before the tanh, their distances from the mean, and the logs of std."""
    xp, size = namespace(outputs), outputs.shape[-1] // 2
    log_std = xp.clip(outputs[..., size:], MIN_LOG_STD, MAX_LOG_STD)
    spread = xp.exp(log_std) * noise
    return outputs[..., :size] + spread, spread, log_std


class SquashedGaussianActor(BoxActor):
    """A stochastic actor: the action is the tanh of a Gaussian sample (arXiv:1801.01290).

    The last layer's outputs are the mean and the logarithm of the standard deviation. The logarithm
    is clipped to -20 to 2, as in the program of the paper's authors.
    """

    outputs_per_action = 2

    def act(self, obs: NumpyArray) -> FloatArray:
        mean, _ = np.split(self._body.infer(obs), 2, axis=-1)
        action: FloatArray = np.tanh(mean)
        return action

    def draw(self, obs: NumpyArray, noise_NA: FloatArray) -> FloatArray:
        """Sample an action for each observation, [N, A], as an array."""
        action_NA: FloatArray = np.tanh(_drawn(self._body.infer(obs), noise_NA)[0])
        return action_NA

    def sample(self, obs: Tensor, noise_GBA: Tensor) -> Sample:
        return squash(self._body.forward(obs), noise_GBA)

    def sample_saving(self, obs: Tensor, noise_GBA: Tensor) -> tuple[Sample, Any]:
        raw, saved = self._body.forward_saving(obs)
        return squash(raw, noise_GBA), saved

    def backward(self, saved: Any, raw_grad: Tensor) -> None:  # noqa: ANN401 - the body's own
        """Write the gradients of the weights, given the result of `Sample.backward`."""
        self._body.backward(saved, raw_grad)


class GreedyActor(nn.Module):
    """A module that maps observations to the best actions in the environment's units."""

    def __init__(self, network: nn.Module, spec: EnvSpec, *, squashes: bool) -> None:
        super().__init__()
        self.network = network
        self.low: Tensor
        self.high: Tensor
        device = next(network.parameters()).device
        for name, bound in zip(
            ("low", "high"), action_bounds(cast(Box, spec.action_space)), strict=True
        ):
            self.register_buffer(name, torch.from_numpy(bound.ravel()).to(device))
        self._shape = spec.action_shape
        self._squashes = squashes

    def forward(self, obs: Tree) -> Tensor:
        found = self.network(obs)
        unit_BA: Tensor = found if isinstance(found, Tensor) else found[0]
        unit_BA = unit_BA[:, : len(self.low)]
        if self._squashes:
            unit_BA = unit_BA.tanh()
        low, high = self.low, self.high
        action_BA = 0.5 * low + 0.5 * high + (0.5 * high - 0.5 * low) * unit_BA
        return action_BA.clip(low, high).reshape(-1, *self._shape)
