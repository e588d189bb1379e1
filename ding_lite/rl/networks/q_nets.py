"""Q-networks: one value per action.

That of vectors has a written-out backward; that of images uses autograd. A test compares both with
plain PyTorch. Both move their inputs to their own device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.networks.conv import Conv, ConvTorso, num_features, recorded
from ding_lite.rl.networks.flat import FlatWeights
from ding_lite.rl.networks.heads import DuelingHead, LinearHead, QHead
from ding_lite.rl.networks.inputs import as_floats
from ding_lite.rl.networks.torso import MLP, Activation

MAX_NUMPY_PRODUCTS = 2**17
"""The most multiplications of a layer that is faster in numpy; its threads start at twice that."""


class QNetwork(Protocol):
    """Computes values, and the gradient of the weights from that of the values."""

    weights: FlatWeights
    grads: FlatWeights

    def forward(self, obs: Tensor) -> Tensor:
        """Compute the values, [B, A]; nothing is recorded."""

    def forward_pair(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Any, Tensor]:
        """Compute the values of obs, the activations for `backward`, and the values of next_obs."""

    def forward_saving(self, obs: Tensor) -> tuple[Tensor, Any]:
        """Compute the values, and return the activations for `backward`."""

    def backward(self, saved: Any, grad_BA: Tensor) -> None:  # noqa: ANN401 - each keeps its own
        """Write `grads`, given the saved activations and the gradient of the values."""

    def values(self, obs: NumpyArray) -> FloatArray:
        """Compute the values of few or many observations, [N, A], as an array."""


class MLPQNetwork:
    """An MLP torso and a head, for vectors; images are flattened.

    Args:
        num_inputs: The length of an observation.
        hidden: The widths of the hidden layers.
        num_actions: The number of values.
        dueling: Whether the last hidden layer and the head are split in two.
        activation: Of the hidden layers.
        device: Of the network.
    """

    def __init__(
        self,
        num_inputs: int,
        hidden: Sequence[int],
        *,
        num_actions: int,
        dueling: bool = False,
        activation: Activation = "relu",
        device: str | torch.device = "cpu",
    ) -> None:
        """Make the weights, all zero, their gradients, and the layers that share them."""
        sizes = (num_inputs, *_widths(hidden, dueling=dueling))
        head = DuelingHead if dueling else LinearHead
        shapes = MLP.shapes(sizes) | head.shapes(sizes[-1], num_actions)
        self.weights = FlatWeights(shapes, device=device)
        self.grads = self.weights.zeros_like()
        largest = max(math.prod(shape) for shape in shapes.values())
        self._device = self.weights.flat.device
        self._max_numpy_rows = MAX_NUMPY_PRODUCTS // largest if self._device.type == "cpu" else 0
        self._torso = MLP(self.weights, self.grads, sizes=sizes, activation=activation)
        self._head: QHead = head(self.weights, self.grads)

    def forward(self, obs: Tensor) -> Tensor:
        """Compute the values, [B, A]; nothing is recorded."""
        return self._head.forward(self._torso.forward(self._vectors(obs))[-1])

    def forward_pair(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Compute the values of both in one forward."""
        size = len(obs)
        q_2BA, outputs = self.forward_saving(torch.cat((obs, next_obs)))
        return q_2BA[:size], [output[:size] for output in outputs], q_2BA[size:]

    def forward_saving(self, obs: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Compute the values, and return the output of each layer for `backward`."""
        outputs = self._torso.forward(self._vectors(obs))
        return self._head.forward(outputs[-1]), outputs

    def backward(self, saved: Sequence[Tensor], grad_BA: Tensor) -> None:
        """Write `grads`, given the saved activations and the gradient of the values."""
        grad_BI = self._head.backward(saved[-1], grad_BA.to(self._device))
        self._torso.backward(saved, grad_BI)

    def values(self, obs: NumpyArray) -> FloatArray:
        """Compute the values of few or many observations, [N, A], as an array."""
        if len(obs) <= self._max_numpy_rows:
            vectors_NI = as_floats(obs).reshape(len(obs), -1)
            return self._head.forward_numpy(self._torso.forward_numpy(vectors_NI))
        values_NA: FloatArray = self.forward(torch.from_numpy(obs)).cpu().numpy()
        return values_NA

    def _vectors(self, obs: Tensor) -> Tensor:
        floats = as_floats(obs.to(self._device))
        return floats if floats.dim() == 2 else floats.flatten(1)


class ConvQNetwork:
    """Convolutions, hidden layers and a head, for images.

    Args:
        obs_shape: Channels, height and width.
        convs: The convolutions.
        hidden: The widths of the layers after them.
        num_actions: The number of values.
        dueling: Whether the last hidden layer and the head are split in two.
        device: Of the network.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        convs: Sequence[Conv],
        hidden: Sequence[int],
        *,
        num_actions: int,
        dueling: bool = False,
        device: str | torch.device = "cpu",
    ) -> None:
        """Make the weights, all zero, their gradients, and the layers that share them."""
        sizes = (num_features(obs_shape, convs), *_widths(hidden, dueling=dueling))
        head = DuelingHead if dueling else LinearHead
        shapes = ConvTorso.shapes(obs_shape[0], convs)
        shapes |= MLP.shapes(sizes) | head.shapes(sizes[-1], num_actions)
        self.weights = FlatWeights(shapes, device=device)
        self.grads = self.weights.zeros_like()
        self._device = self.weights.flat.device
        self._convs = ConvTorso(self.weights, self.grads, convs=convs)
        self._hidden = [self._layer(f"torso.{layer}") for layer in range(len(hidden))]
        self._is_dueling = dueling
        names = ("head.value", "head.advantage") if dueling else ("head",)
        self._heads = [self._layer(name) for name in names]

    def forward(self, obs: Tensor) -> Tensor:
        """Compute the values, [B, A]; nothing is recorded."""
        with torch.no_grad():
            return self._values(obs)

    def forward_pair(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the values of both; only the first are recorded."""
        q_BA, saved = self.forward_saving(obs)
        return q_BA, saved, self.forward(next_obs)

    def forward_saving(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the values, recorded by autograd."""
        with torch.enable_grad():
            q_BA = self._values(obs)
        return q_BA.detach(), q_BA

    def backward(self, saved: Tensor, grad_BA: Tensor) -> None:
        """Write `grads`, given the saved activations and the gradient of the values."""
        self.grads.flat.zero_()  # autograd adds to them
        torch.autograd.backward([saved], [grad_BA.to(self._device)])

    def values(self, obs: NumpyArray) -> FloatArray:
        """Compute the values of few or many observations, [N, A], as an array."""
        values_NA: FloatArray = self.forward(torch.from_numpy(obs)).cpu().numpy()
        return values_NA

    def _layer(self, name: str) -> tuple[Tensor, Tensor]:
        weight, bias = f"{name}.weight", f"{name}.bias"
        return recorded(self.weights, self.grads, weight), recorded(self.weights, self.grads, bias)

    def _values(self, obs: Tensor) -> Tensor:
        features_BI = self._convs.forward(as_floats(obs.to(self._device)))
        for weight_OI, bias_O in self._hidden:
            features_BI = F.linear(features_BI, weight_OI, bias_O).relu_()
        if not self._is_dueling:
            return F.linear(features_BI, *self._heads[0])
        for_value, for_advantage = features_BI.chunk(2, dim=1)
        value_B1 = F.linear(for_value, *self._heads[0])
        advantage_BA = F.linear(for_advantage, *self._heads[1])
        return value_B1 + advantage_BA - advantage_BA.mean(1, keepdim=True)


def make_q_network(
    obs_shape: Sequence[int],
    convs: Sequence[Conv],
    hidden: Sequence[int],
    *,
    num_actions: int,
    dueling: bool,
    activation: Activation = "relu",
    device: str | torch.device = "cpu",
) -> QNetwork:
    """Make the network for the observations: with convolutions and ReLUs, or an MLP."""
    if convs:
        return ConvQNetwork(
            obs_shape, convs, hidden, num_actions=num_actions, dueling=dueling, device=device
        )
    return MLPQNetwork(
        math.prod(obs_shape),
        hidden,
        num_actions=num_actions,
        dueling=dueling,
        activation=activation,
        device=device,
    )


def draw_weights(weights: FlatWeights, rng: np.random.Generator) -> None:
    """Initialise weights as PyTorch's layers do: uniform within 1 / sqrt(inputs of a unit)."""
    for name, shape in weights.shapes.items():
        weight_shape = weights.shapes[name.rpartition(".")[0] + ".weight"]
        bound = 1.0 / math.sqrt(math.prod(weight_shape[1:]))
        drawn: npt.NDArray[np.float32] = rng.uniform(-bound, bound, size=shape).astype(np.float32)
        weights[name].copy_(torch.from_numpy(drawn))


def _widths(hidden: Sequence[int], *, dueling: bool) -> tuple[int, ...]:
    """Return the hidden widths, the last one doubled for value and advantages."""
    return (*hidden[:-1], 2 * hidden[-1]) if dueling else tuple(hidden)
