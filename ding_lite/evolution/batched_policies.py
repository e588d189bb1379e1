"""What policies of one architecture need to act and learn as one: rows of weights, and turns.

The weights of all of them lie in the rows of one matrix, and each layer is one multiplication for
all. What an update costs beside the arithmetic, which is most of it for small networks, is then
paid once instead of once a policy. Step sizes, discounts, batch sizes and all that needs no other
arithmetic may differ; who has fewer transitions in a batch, or fewer updates, is masked or left
out. Each ends where it would have ended alone.
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
        """What is learned, and the targets that follow it."""


PolicyT = TypeVar("PolicyT", bound=Stackable)


@dataclass
class UpdateResult:
    """What came of the updates of one policy."""

    metrics: Metrics | None = None
    """What its last update reports; None if there was none."""
    batch: Transitions | None = None
    """What it learned from last."""
    updates: int = 0
    """How many it has done."""
    fault: NonFiniteError | None = None
    """Why it has done no more: a loss was no longer finite. Its weights are as before then."""


class Stack(ABC, Generic[PolicyT]):
    """Room for some policies of one architecture to act and learn in.

    Args:
        like: One of them.
        count: How many there may be at a time.
    """

    def __init__(self, like: PolicyT, count: int) -> None:
        """Reserve memory."""
        weights, target = like.flat_weights
        self._spec = like.spec
        self._weights, self._grads = (StackedTensors(weights.shapes, count) for _ in range(2))
        self._target = StackedTensors(target.shapes, count)

    @classmethod
    @abstractmethod
    def key(cls, policy: PolicyT) -> Hashable | None:
        """Return what policies must have in common; None for one that learns alone."""

    @abstractmethod
    def hold(self, policies: Sequence[PolicyT]) -> Callable[[NumpyArray], NumpyArray]:
        """Take over the weights of some policies as they are now.

        Args:
            policies: As many as there is room for, or fewer.

        Returns:
            What chooses the best actions, [G, N, ...], for observations of each of the G policies,
            [G, N, ...], or for those of all of them, [1, N, ...]. It does so with these weights
            until this stack is used for something else.
        """

    @abstractmethod
    def _update(self, layout: Layout[PolicyT], batch: Transitions) -> None:
        """Do one update of those who still learn."""

    def learn(
        self,
        policies: Sequence[PolicyT],
        sizes: Sequence[int],
        updates: Sequence[int],
        sample: Callable[[int], Transitions],
    ) -> list[UpdateResult]:
        """Let each policy do its updates.

        Args:
            policies: As many as there is room for, or fewer, of the architecture of this stack.
            sizes: How many transitions an update of each takes.
            updates: How many each does.
            sample: Draws so many transitions. In each round it is asked once, for as many as the
                largest batch has for each policy that still learns.

        Returns:
            What came of each, in their order.

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
            # Who has the most updates to do comes first, so those who still learn lie together.
            layout = batch_of(sum(turn.updates > done for turn in turns))
            self._update(layout, sample(layout.num_rows))

        torch._foreach_copy_(flats, rows)
        outcomes = dict(zip(order, (turn.outcome for turn in turns), strict=True))
        return [outcomes[index] for index in range(len(policies))]

    def _take(self, policies: Sequence[PolicyT]) -> int:
        """Take over the weights that are learned, without the targets; return of how many."""
        flats = [policy.flat_weights[0].flat for policy in policies]
        torch._foreach_copy_(self._weights.rows[: len(flats)], flats)
        return len(flats)

    def _vectors(self, obs: Array, count: int) -> Tensor:
        """Give each of some policies its observations, [G, B, I]."""
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
        """Whether a loss is finite; if not, this is the end of its updates."""
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
    """How the batches of some policies lie in one: each has as many rows as the largest."""

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
        """Return the turns that have not broken, each with its row."""
        return ((row, turn) for row, turn in enumerate(self._turns) if turn.outcome.fault is None)

    def fold(self, values: Array) -> NumpyArray:
        """Give each policy a row of values, [G, B]."""
        return to_numpy(values).reshape(self.count, self.largest)

    def mean(self, values_GB: FloatArray) -> FloatArray:
        """Return the mean of what is each policy's own, [G]."""
        if self._mask_GB is not None:
            values_GB = values_GB * self._mask_GB
        means_G: FloatArray = values_GB.sum(axis=1) / self._size_G1[:, 0]
        return means_G

    def per_size(self, slope_GB: FloatArray) -> FloatArray:
        """Return the gradients of those means, 0 where nothing is a policy's own."""
        grad_GB: FloatArray = slope_GB / self._size_G1
        return grad_GB if self._mask_GB is None else grad_GB * self._mask_GB

    def part(self, batch: Transitions, row: int) -> Transitions:
        """Return what one policy has learned from."""
        first = row * self.largest
        last = first + self._turns[row].size
        return Transitions(*(getattr(batch, f.name)[first:last] for f in fields(Transitions)))


class StackedTensors:
    """The same named tensors of several policies: a row each of one matrix."""

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
        layers: What the names of the tensors of each layer begin with.
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
        """Pass a gradient back through what comes after a hidden layer, in place."""
        if self._is_relu:
            torch.ops.aten.threshold_backward.grad_input(grad, output, 0, grad_input=grad)
        else:
            torch.ops.aten.tanh_backward.grad_input(grad, output, grad_input=grad)
        return grad
