"""Layers of MLPs, of one network or of several networks of one architecture, computed together.

Several networks are members along a leading axis of all tensors: two twin critics, or the networks
of a population. A single network has no such axis, and the same lines compute it. Forward and
backward are written out on views into flat weights instead of being recorded by autograd: for
networks of this size recording takes longer than the arithmetic. A test compares both.

Shape letters: G members, B rows of each, I inputs and O outputs of a layer; `...` is G or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ding_lite.rl.batch import FloatArray
from ding_lite.rl.host_or_device import AnyArray, is_host, placed
from ding_lite.rl.networks.activations import FUNCTIONS, Activation, through
from ding_lite.rl.weights.flat import FlatWeights

ONE_THREAD_PRODUCTS = 2**18
"""The largest number of multiplications of a matrix product for which numpy starts no threads."""
MAX_NUMPY_PRODUCTS = 2**17
"""The multiplications of the largest layer that numpy computes; it starts threads at twice that."""


class Members(Protocol):
    """Tensors by name, of all members or of a single network."""

    def __getitem__(self, name: str, /) -> Tensor:
        """Return a tensor by its name, [G, ...] if there are members."""


class Viewed:
    """Tensors by name, each passed through a function."""

    def __init__(self, tensors: Members, view: Callable[[Tensor], Tensor]) -> None:
        self._tensors, self._view = tensors, view

    def __getitem__(self, name: str, /) -> Tensor:
        return self._view(self._tensors[name])


def one_member(weights: FlatWeights) -> Members:
    """Return flat weights with an axis for a single member."""
    return Viewed(weights, lambda tensor: tensor.unsqueeze(0))


class Linear:
    """One layer, y = x W^T + b, on views into flat weights and flat gradients.

    On a CPU numpy computes small gradients: where there are few inputs, PyTorch takes up to twenty
    times as long.

    Args:
        first: Use only so many members, from the first on; all if None.
    """

    def __init__(
        self, weights: Members, grads: Members, *, name: str, first: int | None = None
    ) -> None:
        self._weight, self._weight_grad, bias, self._bias_grad = (
            tensors[f"{name}.{which}"][:first]
            for which in ("weight", "bias")
            for tensors in (weights, grads)
        )
        self._weight_T = self._weight.mT
        self.size = self._weight.shape[-2:].numel()
        """The multiplications of one row."""
        self.device = self._weight.device
        is_single = self._weight.dim() == 2
        self._bias = bias if is_single else bias.unsqueeze(1)
        self._product: Callable[..., Tensor] = torch.mm if is_single else torch.bmm
        self._add_product: Callable[..., Tensor] = torch.addmm if is_single else torch.baddbmm
        self._is_host = is_host(self.device)
        if self._weight.is_cpu:  # numpy cannot access other memory
            self._weight_numpy: FloatArray = self._weight.numpy()
            self._weight_grad_numpy: FloatArray = self._weight_grad.numpy()
            self._bias_grad_numpy: FloatArray = self._bias_grad.numpy()
            first_member = () if is_single else 0
            self._weight_IO_numpy: FloatArray = self._weight_numpy[first_member].T
            self._bias_O_numpy: FloatArray = bias[first_member].numpy()

    def forward(self, x: Tensor) -> Tensor:
        """Compute y, [..., B, O], given x, [..., B, I]."""
        return self._add_product(self._bias, x, self._weight_T)

    def forward_numpy(self, x_NI: FloatArray) -> FloatArray:
        """Compute y of few inputs of the first member; numpy has less overhead for them."""
        y_NO: FloatArray = x_NI @ self._weight_IO_numpy
        y_NO += self._bias_O_numpy
        return y_NO

    def backward(self, x: Tensor, grad: Tensor) -> None:
        if not self._is_host:
            torch.sum(grad, -2, out=self._bias_grad)
            self._product(grad.mT, x, out=self._weight_grad)
            return
        array = grad.numpy()
        num_rows = array.shape[-2]
        np.matmul(_ones(num_rows), array, out=self._bias_grad_numpy)
        if num_rows * self.size <= ONE_THREAD_PRODUCTS:
            np.matmul(array.mT, x.numpy(), out=self._weight_grad_numpy)
        else:
            self._product(grad.mT, x, out=self._weight_grad)

    def backward_input(self, grad: Tensor, *, last: int = 0) -> Tensor:
        """Compute the gradient of x, [..., B, I], given that of y."""
        if last and self._is_host and grad.shape[-2] * self.size <= ONE_THREAD_PRODUCTS:
            return torch.from_numpy(np.matmul(grad.numpy(), self._weight_numpy[..., -last:]))
        return self._product(grad, self._weight[..., -last:] if last else self._weight)


@lru_cache(maxsize=64)
def _ones(count: int) -> FloatArray:
    """Return ones, cached; their product with a matrix is the sum of its rows."""
    return np.ones(count, dtype=np.float32)


class DuelingHead:
    """The value of an observation, and the advantage of each action (Wang et al. 2016).

    The first half of the features is for the value, the second for the advantages, so that each
    has its own last hidden layer.
    """

    def __init__(self, weights: Members, grads: Members, *, first: int | None = None) -> None:
        self._value = Linear(weights, grads, name="head.value", first=first)
        self._advantage = Linear(weights, grads, name="head.advantage", first=first)
        self._half = weights["head.value.weight"].shape[-1]
        self.size, self.device = self._advantage.size, self._advantage.device

    def forward(self, features: Tensor) -> Tensor:
        value = self._value.forward(features[..., : self._half])
        q: Tensor = dueling(value, self._advantage.forward(features[..., self._half :]))
        return q

    def forward_numpy(self, features_NI: FloatArray) -> FloatArray:
        value_N1 = self._value.forward_numpy(features_NI[:, : self._half])
        q_NA: FloatArray = dueling(
            value_N1, self._advantage.forward_numpy(features_NI[:, self._half :])
        )
        return q_NA

    def backward(self, features: Tensor, grad: Tensor) -> None:
        value_grad, advantage_grad = _split(grad)
        self._value.backward(features[..., : self._half], value_grad)
        self._advantage.backward(features[..., self._half :], advantage_grad)

    def backward_input(self, grad: Tensor) -> Tensor:
        value_grad, advantage_grad = _split(grad)
        parts = (
            self._value.backward_input(value_grad),
            self._advantage.backward_input(advantage_grad),
        )
        return torch.cat(parts, dim=-1)


def dueling(value: AnyArray, advantage: AnyArray) -> AnyArray:
    """Compute q(x, a) = v(x) + adv(x, a) - mean over a' of adv(x, a'), overwriting `advantage`.

    This is equation 9 of arXiv:1511.06581.
    """
    advantage += value - advantage.mean(-1, keepdims=True)
    return advantage


def _split(grad: Tensor) -> tuple[Tensor, Tensor]:
    value_grad = grad.sum(-1, keepdim=True)
    return value_grad, grad - value_grad / grad.shape[-1]


class MLP:
    """Fully connected layers with an activation after each, and a head."""

    def __init__(
        self,
        weights: Members,
        grads: Members,
        hidden: Sequence[str],
        head: str | DuelingHead,
        *,
        activation: Activation = "relu",
        first: int | None = None,
    ) -> None:
        self._function = FUNCTIONS[activation]
        self._hidden = [Linear(weights, grads, name=name, first=first) for name in hidden]
        self._forwards = [layer.forward for layer in self._hidden]
        self._numpy_forwards = [layer.forward_numpy for layer in self._hidden]
        self._head = (
            Linear(weights, grads, name=head, first=first) if isinstance(head, str) else head
        )
        largest = max(layer.size for layer in (*self._hidden, self._head))
        on_cpu = self._head.device.type == "cpu"
        self._max_numpy_rows = MAX_NUMPY_PRODUCTS // largest if on_cpu else 0

    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute the outputs of all layers: first the input, last the head's output.

        The input of an activation precedes its output if its backward needs the input.
        """
        outputs = [x]
        features = through(self._forwards, x, partial(self._function.extend, outputs))
        outputs.append(self._head.forward(features))
        return outputs

    def forward_numpy(self, x_NI: FloatArray) -> FloatArray:
        """Compute the outputs of few inputs of the first member, [N, O]."""
        features_NI = through(self._numpy_forwards, x_NI, self._function.forward_numpy)
        return self._head.forward_numpy(features_NI)

    def infer(self, x_NI: FloatArray) -> FloatArray:
        if len(x_NI) <= self._max_numpy_rows:
            return self.forward_numpy(x_NI)
        outputs_NO: FloatArray = self.forward(placed(x_NI, self._head.device))[-1].cpu().numpy()
        return outputs_NO

    def backward(self, outputs: Sequence[Tensor], grad: Tensor) -> None:
        self._head.backward(self._input(outputs, len(self._hidden)), grad)
        if self._hidden:
            grad = self._head.backward_input(grad)
        for index in reversed(range(len(self._hidden))):
            self._through(grad, outputs, index)
            self._hidden[index].backward(self._input(outputs, index), grad)
            if index:
                grad = self._hidden[index].backward_input(grad)

    def backward_input(self, outputs: Sequence[Tensor], grad: Tensor, *, last: int) -> Tensor:
        """Compute the gradient of the last `last` numbers of the input only."""
        grad = self._head.backward_input(grad)
        for index in reversed(range(len(self._hidden))):
            self._through(grad, outputs, index)
            grad = self._hidden[index].backward_input(grad, last=0 if index else last)
        return grad

    def _input(self, outputs: Sequence[Tensor], layer: int) -> Tensor:
        return outputs[self._function.stride * layer]

    def _through(self, grad: Tensor, outputs: Sequence[Tensor], layer: int) -> None:
        self._function.backward(grad, outputs[self._function.stride * layer + 1])


class MLPOutputs:
    """The outputs of an MLP, and the activations for its backward."""

    def __init__(self, layers: MLP) -> None:
        self._layers = layers

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs, [..., B, O]; nothing is recorded."""
        return self.forward_saving(x)[0]

    def forward_saving(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        outputs = self._layers.forward(x)
        return outputs[-1], outputs

    def infer(self, x: FloatArray) -> FloatArray:
        outputs: FloatArray = self.forward(torch.from_numpy(x)).numpy()
        return outputs

    def forward_pair(self, x: Tensor, next_x: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Compute the outputs of both in one forward, and the activations of the first."""
        size = x.shape[-2]
        both, saved = self.forward_saving(torch.cat((x, next_x), dim=-2))
        # An index for each axis: an ellipsis takes twice as long.
        first = np.s_[:size] if x.dim() == 2 else np.s_[:, :size]
        second = np.s_[size:] if x.dim() == 2 else np.s_[:, size:]
        of_first = [each[first] for each in saved]
        return of_first[-1], of_first, both[second]

    def backward(self, saved: Sequence[Tensor], grad: Tensor) -> None:
        self._layers.backward(saved, grad)


def names_of(prefix: str, count: int) -> list[str]:
    return [f"{prefix}.{layer}" for layer in range(count)]
