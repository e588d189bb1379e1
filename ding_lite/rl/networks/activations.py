"""Activation functions of hidden layers: the forward, and a written-out backward.

The derivative of ReLU, tanh and ELU follows from their output, so that they overwrite their input.
GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415, with the exact normal distribution function) and
SiLU are not monotonic, so that their backward needs the input. A test compares each with autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ding_lite.rl.batch import FloatArray
from ding_lite.rl.host_or_device import is_host

Activation: TypeAlias = Literal["relu", "tanh", "gelu", "elu", "silu"]

ValueT = TypeVar("ValueT")

_aten = torch.ops.aten


@dataclass(frozen=True)
class ActivationFunction:
    """One activation function."""

    recorded: Callable[[Tensor], Tensor]
    forward: Callable[[Tensor], Tensor]
    """The function; it overwrites its input unless `saves_input`."""
    forward_numpy: Callable[[FloatArray], FloatArray]
    """Overwrites an array with the function of its values, and returns it."""
    backward: Callable[[Tensor, Tensor], Tensor]
    """Overwrites the gradient of the output, the first argument, with that of the input. The second
    argument is the input if `saves_input`, otherwise the output."""
    saves_input: bool = False
    """Whether the backward needs the input instead of the output."""

    def extend(self, outputs: list[Tensor], sums: Tensor) -> Tensor:
        """Append the tensors that the backward needs, the output last; return the output."""
        if self.saves_input:
            outputs.append(sums)
        found = self.forward(sums)
        outputs.append(found)
        return found

    @property
    def stride(self) -> int:
        """The number of tensors that `extend` appends."""
        return 2 if self.saves_input else 1


def through(
    layers: Iterable[Callable[[ValueT], ValueT]], x: ValueT, function: Callable[[ValueT], ValueT]
) -> ValueT:
    for layer in layers:
        x = function(layer(x))
    return x


def _tanh_forward(sums: Tensor) -> Tensor:
    if not is_host(sums.device):
        return sums.tanh_()
    array = sums.numpy()
    np.tanh(array, out=array)  # takes a sixth of the time of PyTorch's function
    return sums


def _on_array(operation: Callable[[Tensor], object]) -> Callable[[FloatArray], FloatArray]:
    """Return an in-place PyTorch operation as one on numpy arrays."""

    def forward(array: FloatArray) -> FloatArray:
        operation(torch.from_numpy(array))
        return array

    return forward


def _relu_backward(grad: Tensor, output: Tensor) -> Tensor:
    _aten.threshold_backward.grad_input(grad, output, 0, grad_input=grad)
    return grad


def _backward(operation: Any, *settings: float) -> Callable[[Tensor, Tensor], Tensor]:  # noqa: ANN401
    """Return a PyTorch operation as one that overwrites the gradient of the output."""

    def backward(grad: Tensor, saved: Tensor) -> Tensor:
        operation.grad_input(grad, *settings, saved, grad_input=grad)
        return grad

    return backward


FUNCTIONS: dict[Activation, ActivationFunction] = {
    "relu": ActivationFunction(
        recorded=torch.relu,
        forward=Tensor.relu_,
        forward_numpy=lambda array: np.maximum(array, 0.0, out=array),
        backward=_relu_backward,
    ),
    "tanh": ActivationFunction(
        recorded=torch.tanh,
        forward=_tanh_forward,
        forward_numpy=lambda array: np.tanh(array, out=array),
        backward=_backward(_aten.tanh_backward),
    ),
    "elu": ActivationFunction(
        recorded=F.elu,
        forward=_aten.elu_,
        forward_numpy=_on_array(_aten.elu_),
        backward=_backward(_aten.elu_backward, 1.0, 1.0, 1.0, True),
    ),
    "gelu": ActivationFunction(
        recorded=F.gelu,
        forward=F.gelu,
        forward_numpy=_on_array(_aten.gelu_),  # numpy has no erf
        backward=_backward(_aten.gelu_backward),
        saves_input=True,
    ),
    "silu": ActivationFunction(
        recorded=F.silu,
        forward=F.silu,
        forward_numpy=_on_array(_aten.silu_),
        backward=_backward(_aten.silu_backward),
        saves_input=True,
    ),
}
