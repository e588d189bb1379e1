"""MLP torsos, which compute features from observations.

Forward and backward are written out on views into flat weights instead of being recorded by
autograd: for networks of this size the recording costs more than the arithmetic. A test
compares both with autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ding_lite.rl.batch import FloatArray
from ding_lite.rl.networks.flat import FlatWeights

Activation: TypeAlias = Literal["relu", "tanh"]
"""The activation function of hidden layers."""


class Linear:
    """One layer, y = x W^T + b, on views into flat weights and flat gradients."""

    def __init__(self, weights: FlatWeights, grads: FlatWeights, *, name: str) -> None:
        """Take the tensors `<name>.weight` and `<name>.bias`."""
        weight_OI = weights[f"{name}.weight"]
        self._weight_OI = weight_OI
        self._weight_IO = weight_OI.T
        self._bias_O = weights[f"{name}.bias"]
        self._weight_grad_OI = grads[f"{name}.weight"]
        self._bias_grad_O = grads[f"{name}.bias"]
        if weight_OI.device.type == "cpu":  # numpy sees no other memory
            self._weight_IO_numpy: FloatArray = self._weight_IO.numpy()
            self._bias_O_numpy: FloatArray = self._bias_O.numpy()

    @staticmethod
    def shapes(name: str, num_inputs: int, num_outputs: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of such a layer."""
        return {f"{name}.weight": (num_outputs, num_inputs), f"{name}.bias": (num_outputs,)}

    def forward(self, x_BI: Tensor) -> Tensor:
        """Compute y, [B, O]."""
        return torch.addmm(self._bias_O, x_BI, self._weight_IO)

    def forward_numpy(self, x_BI: FloatArray) -> FloatArray:
        """Compute y of few inputs, for which numpy has less overhead."""
        y_BO: FloatArray = x_BI @ self._weight_IO_numpy
        y_BO += self._bias_O_numpy
        return y_BO

    def backward(self, x_BI: Tensor, grad_BO: Tensor) -> None:
        """Write the gradients of weight and bias, given that of y."""
        torch.mm(grad_BO.T, x_BI, out=self._weight_grad_OI)
        torch.sum(grad_BO, 0, out=self._bias_grad_O)

    def backward_input(self, grad_BO: Tensor) -> Tensor:
        """Compute the gradient of x, [B, I], given that of y."""
        return torch.mm(grad_BO, self._weight_OI)


class MLP:
    """Fully connected layers with a ReLU, or tanh, after each.

    Args:
        weights: Holds the tensors of `shapes`.
        grads: Takes their gradients.
        sizes: The number of inputs, then the width of each layer.
        name: The prefix of its tensors' names.
        activation: Of each layer.
    """

    def __init__(
        self,
        weights: FlatWeights,
        grads: FlatWeights,
        *,
        sizes: Sequence[int],
        name: str = "torso",
        activation: Activation = "relu",
    ) -> None:
        """Take the tensors `<name>.<layer>.weight` and `<name>.<layer>.bias`."""
        self._is_relu = activation == "relu"
        self._layers = [
            Linear(weights, grads, name=f"{name}.{layer}") for layer in range(len(sizes) - 1)
        ]

    @staticmethod
    def shapes(sizes: Sequence[int], *, name: str = "torso") -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of such a torso."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (num_inputs, num_outputs) in enumerate(pairwise(sizes)):
            shapes |= Linear.shapes(f"{name}.{layer}", num_inputs, num_outputs)
        return shapes

    def forward(self, x_BI: Tensor) -> list[Tensor]:
        """Compute the output of every layer, the input first and the features last."""
        outputs = [x_BI]
        for layer in self._layers:
            sums = layer.forward(outputs[-1])
            outputs.append(sums.relu_() if self._is_relu else sums.tanh_())
        return outputs

    def forward_numpy(self, x_BI: FloatArray) -> FloatArray:
        """Compute the features of few inputs, for which numpy has less overhead."""
        for layer in self._layers:
            x_BI = layer.forward_numpy(x_BI)
            if self._is_relu:
                np.maximum(x_BI, 0.0, out=x_BI)
            else:
                np.tanh(x_BI, out=x_BI)
        return x_BI

    def backward(self, outputs: Sequence[Tensor], grad_BO: Tensor) -> None:
        """Write the gradients of all layers.

        Args:
            outputs: The outputs that `forward` returned.
            grad_BO: The gradient of the features. It is overwritten.
        """
        for index in reversed(range(len(self._layers))):
            layer, x_BI, y_BO = self._layers[index], outputs[index], outputs[index + 1]
            if self._is_relu:
                torch.ops.aten.threshold_backward.grad_input(grad_BO, y_BO, 0, grad_input=grad_BO)
            else:
                torch.ops.aten.tanh_backward.grad_input(grad_BO, y_BO, grad_input=grad_BO)
            layer.backward(x_BI, grad_BO)
            if index:
                grad_BO = layer.backward_input(grad_BO)
