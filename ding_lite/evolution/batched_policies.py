"""The base of batched policies: stacked weights, and a schedule of their updates.

The weights of the policies lie in the rows of one matrix, and each layer is one multiplication for
all. The overhead of an update, which is most of its cost for small networks, is then paid once
instead of once a policy. Step sizes, discounts, batch sizes and all settings that need no other
arithmetic may differ; a policy with fewer transitions in a batch is masked, one with fewer updates
left out. Each policy ends as it would have ended alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import NonFiniteError
from ding_lite.rl.batch import Array, FloatArray, NumpyArray, Transitions, to_numpy
from ding_lite.rl.networks.action_values import NamedTensors, StackedLinear
from ding_lite.rl.networks.flat import FlatWeights
from ding_lite.rl.networks.inputs import as_floats
from ding_lite.rl.policies.base import check_obs
from ding_lite.rl.spec import EnvSpec

Metrics = dict[str, float]


class Stackable(Protocol):
    """A policy that can be one of several in a stack."""

    spec: EnvSpec
    train_iter: int

    @property
    def gamma(self) -> float:
        """The discount of one env step."""

    @property
    def flat_weights(self) -> tuple[FlatWeights, FlatWeights]:
        """The weights that are learned, and the target weights."""


PolicyT = TypeVar("PolicyT", bound=Stackable)


@dataclass
class UpdateResult:
    """The result of the updates of one policy."""

    metrics: Metrics | None = None
    """The metrics of its last update; None without updates."""
    batch: Transitions | None = None
    """The batch of its last update."""
    updates: int = 0
    """The number of its updates."""
    fault: NonFiniteError | None = None
    """The error that ended its updates: a loss was not finite. Its weights are as before it."""


class Stack(ABC, Generic[PolicyT]):
    """Memory in which policies of one architecture act and learn as one computation.

    Args:
        like: One of them.
        count: The most policies at a time.
    """

    def __init__(self, like: PolicyT, count: int) -> None:
        """Allocate memory."""
        weights, target = like.flat_weights
        self._spec = like.spec
        self._weights, self._grads = (StackedTensors(weights.shapes, count) for _ in range(2))
        self._target = StackedTensors(target.shapes, count)

    @classmethod
    @abstractmethod
    def key(cls, policy: PolicyT) -> Hashable | None:
        """Return the key that policies of one stack share; None for one that learns alone."""

    @abstractmethod
    def hold(self, policies: Sequence[PolicyT]) -> Callable[[NumpyArray], NumpyArray]:
        """Copy the weights of some policies, to act by them.

        Args:
            policies: At most as many as the stack has places.

        Returns:
            A function from the observations of each of the G policies, [G, N, ...], or from those
            of all, [1, N, ...], to greedy actions, [G, N, ...]. It is valid until the stack is used
            for something else.
        """

    @abstractmethod
    def _update(self, layout: Layout[PolicyT], batch: Transitions) -> None:
        """Do one update of the policies with updates left."""

    def learn(
        self,
        policies: Sequence[PolicyT],
        sizes: Sequence[int],
        updates: Sequence[int],
        sample: Callable[[int], Transitions],
    ) -> list[UpdateResult]:
        """Do the updates of each policy.

        Args:
            policies: At most as many as the stack has places, of its architecture.
            sizes: The batch size of each.
            updates: The number of updates of each.
            sample: Samples so many transitions. In each round it is called once, for as many as the
                largest batch has for each policy with updates left.

        Returns:
            The result of each, in their order.

        Raises:
            ShapeError: If the observations are not those of the environment they were made for.
        """
        order = sorted(range(len(policies)), key=lambda index: -updates[index])
        turns = [Turn(policies[index], sizes[index], updates[index]) for index in order]
        pairs = [turn.policy.flat_weights for turn in turns]
        flats = [weights.flat for weights, _ in pairs] + [target.flat for _, target in pairs]
        rows = self._weights.rows[: len(turns)] + self._target.rows[: len(turns)]
        torch._foreach_copy_(rows, flats)

        batch_of = cache(lambda active: Layout(turns[:active]))
        for done in range(max(updates, default=0)):
            # In descending order of updates, so that the policies with updates left are adjacent.
            layout = batch_of(sum(turn.updates > done for turn in turns))
            self._update(layout, sample(layout.num_rows))

        torch._foreach_copy_(flats, rows)
        outcomes = dict(zip(order, (turn.outcome for turn in turns), strict=True))
        return [outcomes[index] for index in range(len(policies))]

    def _take(self, policies: Sequence[PolicyT]) -> int:
        """Copy the weights that are learned, without the targets; return the number of policies."""
        flats = [policy.flat_weights[0].flat for policy in policies]
        torch._foreach_copy_(self._weights.rows[: len(flats)], flats)
        return len(flats)

    def _vectors(self, obs: Array, count: int) -> Tensor:
        """Return the observations of each policy, [G, B, I]."""
        check_obs(obs, self._spec)
        vectors = as_floats(torch.as_tensor(obs)).float()
        return vectors.reshape(count, -1, math.prod(vectors.shape[1:]))


class Turn(Generic[PolicyT]):
    """The updates of one policy."""

    def __init__(self, policy: PolicyT, size: int, updates: int) -> None:
        self.policy = policy
        self.size = size
        self.updates = updates
        self.outcome = UpdateResult()

    def passes(self, check: Callable[[], None]) -> bool:
        """Return whether a loss is finite; if not, end the updates."""
        try:
            check()
        except NonFiniteError as error:
            self.outcome.fault = error
            return False
        return True

    def count(self) -> bool:
        """Count an update; return whether it was the last one."""
        self.outcome.updates += 1
        return self.outcome.updates == self.updates


class Layout(Generic[PolicyT]):
    """The layout of several policies' batches in one: each has as many rows as the largest."""

    def __init__(self, turns: Sequence[Turn[PolicyT]]) -> None:
        self.count = len(turns)
        self._turns = turns
        sizes = [turn.size for turn in turns]
        self.largest = max(sizes)
        self.num_rows = self.count * self.largest
        self.gamma_G1 = np.array([[turn.policy.gamma] for turn in turns], dtype=np.float32)
        self.index = (np.arange(self.count)[:, None], np.arange(self.largest)[None])
        self._size_G1 = np.array(sizes, dtype=np.float32)[:, None]
        self._mask_GB = None
        if min(sizes) < self.largest:
            self._mask_GB = (self.index[1] < self._size_G1).astype(np.float32)

    def learning(self) -> Iterator[tuple[int, Turn[PolicyT]]]:
        """Return the turns without a fault, each with its row."""
        return ((row, turn) for row, turn in enumerate(self._turns) if turn.outcome.fault is None)

    def fold(self, values: Array) -> NumpyArray:
        """Reshape values to a row for each policy, [G, B]."""
        return to_numpy(values).reshape(self.count, self.largest)

    def mean(self, values_GB: FloatArray) -> FloatArray:
        """Return the mean over each policy's own rows, [G]."""
        if self._mask_GB is not None:
            values_GB = values_GB * self._mask_GB
        means_G: FloatArray = values_GB.sum(axis=1) / self._size_G1[:, 0]
        return means_G

    def per_size(self, slope_GB: FloatArray) -> FloatArray:
        """Return the gradients of those means, 0 outside of a policy's own rows."""
        grad_GB: FloatArray = slope_GB / self._size_G1
        return grad_GB if self._mask_GB is None else grad_GB * self._mask_GB

    def part(self, batch: Transitions, row: int) -> Transitions:
        """Return the transitions that one policy has learned from."""
        first = row * self.largest
        last = first + self._turns[row].size
        return Transitions(*(getattr(batch, f.name)[first:last] for f in fields(Transitions)))


class StackedTensors:
    """Named tensors of several policies, as views into a matrix with a row for each policy."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], count: int) -> None:
        matrix = torch.zeros(count, sum(map(math.prod, shapes.values())))
        self.rows = list(matrix.unbind())
        self._views: dict[str, Tensor] = {}
        start = 0
        for name, shape in shapes.items():
            end = start + math.prod(shape)
            self._views[name] = matrix[:, start:end].view(count, *shape)
            start = end

    def __getitem__(self, name: str, /) -> Tensor:
        return self._views[name]


class StackedNetwork:
    """Networks of one architecture, computed together.

    Args:
        weights: Holds the tensors of all of them.
        grads: Takes their gradients.
        layers: The prefixes of the names of each layer's tensors.
        first: Only so many of the networks, from the first on.
        is_relu: Whether ReLUs lie between the layers; else tanh does.
    """

    def __init__(
        self,
        weights: NamedTensors,
        grads: NamedTensors,
        layers: Sequence[str],
        *,
        first: int,
        is_relu: bool = True,
    ) -> None:
        self._layers = [StackedLinear(weights, grads, name=name, first=first) for name in layers]
        self._is_relu = is_relu

    def forward(self, x_GBI: Tensor) -> list[Tensor]:
        """Compute the output of each layer, the input first and the last one's last."""
        outputs = [x_GBI]
        *hidden, last = self._layers
        for layer in hidden:
            sums = layer.forward(outputs[-1])
            outputs.append(sums.relu_() if self._is_relu else sums.tanh_())
        outputs.append(last.forward(outputs[-1]))
        return outputs

    def backward(self, outputs: Sequence[Tensor], grad_GBO: Tensor) -> None:
        """Write the gradients, given those of the last layer's output."""
        for index in reversed(range(len(self._layers))):
            layer, x_GBI = self._layers[index], outputs[index]
            layer.backward(x_GBI, grad_GBO)
            if index:
                grad_GBO = self._through(layer.backward_input(grad_GBO), x_GBI)

    def backward_input(self, outputs: Sequence[Tensor], grad_GBO: Tensor, *, last: int) -> Tensor:
        """Compute the gradient of the last numbers of the input, and of nothing else."""
        for index in reversed(range(1, len(self._layers))):
            grad_GBI = self._layers[index].backward_input(grad_GBO)
            grad_GBO = self._through(grad_GBI, outputs[index])
        return self._layers[0].backward_input(grad_GBO, last=last)

    def _through(self, grad: Tensor, output: Tensor) -> Tensor:
        """Backpropagate through the activation of a hidden layer, in place."""
        if self._is_relu:
            torch.ops.aten.threshold_backward.grad_input(grad, output, 0, grad_input=grad)
        else:
            torch.ops.aten.tanh_backward.grad_input(grad, output, grad_input=grad)
        return grad
