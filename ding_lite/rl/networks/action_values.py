"""Critics for box actions: several networks that estimate the return, computed together.

The weights of the networks are stacked, and each layer is one call for all of them. Forward and
backward are written out, as in `torso`; a test compares both with autograd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ding_lite.rl.batch import FloatArray
from ding_lite.rl.networks.flat import FlatWeights


class NamedTensors(Protocol):
    """Tensors by name, as `FlatWeights` has them."""

    def __getitem__(self, name: str, /) -> Tensor:
        """Return the tensor of a name."""


class StackedLinear:
    """One layer of E networks, y = x W^T + b for each, on views into flat weights and gradients.

    Args:
        weights: Holds the tensors of `shapes`.
        grads: Takes their gradients.
        name: The prefix of their names.
        first: Only so many of the networks, from the first on; all if None.
    """

    def __init__(
        self, weights: NamedTensors, grads: NamedTensors, *, name: str, first: int | None = None
    ) -> None:
        """Take the tensors `<name>.weight` and `<name>.bias`."""
        self._weight_EOI = weights[f"{name}.weight"][:first]
        self._weight_EIO = self._weight_EOI.transpose(1, 2)
        self._bias_E1O = weights[f"{name}.bias"][:first].unsqueeze(1)
        self._weight_grad_EOI = grads[f"{name}.weight"][:first]
        self._bias_grad_EO = grads[f"{name}.bias"][:first]

    @staticmethod
    def shapes(
        name: str, num_networks: int, num_inputs: int, num_outputs: int
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of such a layer."""
        return {
            f"{name}.weight": (num_networks, num_outputs, num_inputs),
            f"{name}.bias": (num_networks, num_outputs),
        }

    def forward(self, x_EBI: Tensor) -> Tensor:
        """Compute y, [E, B, O]."""
        return torch.baddbmm(self._bias_E1O, x_EBI, self._weight_EIO)

    def backward(self, x_EBI: Tensor, grad_EBO: Tensor) -> None:
        """Write the gradients of weight and bias, given that of y."""
        torch.bmm(grad_EBO.transpose(1, 2), x_EBI, out=self._weight_grad_EOI)
        torch.sum(grad_EBO, 1, out=self._bias_grad_EO)

    def backward_input(self, grad_EBO: Tensor, *, last: int = 0) -> Tensor:
        """Compute the gradient of x, [E, B, I], given that of y; only of the `last` inputs if any.

        The gradient of the action needs no others.
        """
        return torch.bmm(grad_EBO, self._weight_EOI[:, :, -last:])


class ActionValues:
    """E networks of one size with ReLU between the layers, and a single output each.

    Args:
        weights: Holds the tensors of `shapes`.
        grads: Takes their gradients.
        depth: How many layers they have, the last one included.
        first: Only so many of the networks, from the first on; all if None.
    """

    def __init__(
        self, weights: FlatWeights, grads: FlatWeights, *, depth: int, first: int | None = None
    ) -> None:
        """Take the tensors `<layer>.weight` and `<layer>.bias`."""
        self._layers = [
            StackedLinear(weights, grads, name=str(layer), first=first) for layer in range(depth)
        ]
        num_networks = weights["0.bias"][:first].shape[0]
        self._stacked = (num_networks, -1, -1)

    @staticmethod
    def shapes(
        num_networks: int, num_inputs: int, num_actions: int, hidden: Sequence[int]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of such networks, by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, sizes in enumerate(pairwise((num_inputs + num_actions, *hidden, 1))):
            shapes |= StackedLinear.shapes(str(layer), num_networks, *sizes)
        return shapes

    def forward(self, obs_BI: Tensor, action_BA: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Compute the values, [E, B], and the input of each layer, for the backward."""
        x_EBI = torch.cat((obs_BI, action_BA), dim=1).expand(self._stacked)
        inputs = [x_EBI]
        *hidden_layers, last_layer = self._layers
        for layer in hidden_layers:
            x_EBI = layer.forward(x_EBI).relu_()
            inputs.append(x_EBI)
        return last_layer.forward(x_EBI).squeeze(2), inputs

    def backward(self, inputs: Sequence[Tensor], grad_EB: Tensor) -> None:
        """Write the gradients of the weights, given those of the values."""
        grad_EBO = grad_EB.unsqueeze(2)
        for index in reversed(range(len(self._layers))):
            layer, x_EBI = self._layers[index], inputs[index]
            layer.backward(x_EBI, grad_EBO)
            if index:
                grad_EBO = _through_relu(layer.backward_input(grad_EBO), x_EBI)

    def backward_action(
        self, inputs: Sequence[Tensor], grad_EB: Tensor, *, num_actions: int
    ) -> Tensor:
        """Compute the gradient of the action, [B, A], given those of the values."""
        grad_EBO = grad_EB.unsqueeze(2)
        for index in reversed(range(1, len(self._layers))):
            grad_EBI = self._layers[index].backward_input(grad_EBO)
            grad_EBO = _through_relu(grad_EBI, inputs[index])
        return self._layers[0].backward_input(grad_EBO, last=num_actions).sum(0)


def draw_stacked_weights(weights: FlatWeights, rng: np.random.Generator) -> None:
    """Initialise weights as PyTorch's layers do: uniform within 1 / sqrt(inputs of a unit)."""
    for name, shape in weights.shapes.items():
        num_inputs = weights.shapes[f"{name.partition('.')[0]}.weight"][2]
        bound = 1.0 / math.sqrt(num_inputs)
        drawn: FloatArray = rng.uniform(-bound, bound, size=shape).astype(np.float32)
        weights[name].copy_(torch.from_numpy(drawn))


def _through_relu(grad: Tensor, output: Tensor) -> Tensor:
    """Backpropagate through a ReLU, in place."""
    torch.ops.aten.threshold_backward.grad_input(grad, output, 0, grad_input=grad)
    return grad
