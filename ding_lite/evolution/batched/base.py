"""The base of batched policies: stacked weights, and a schedule of their updates.

The weights of the policies lie in the rows of one matrix, and each layer is one multiplication for
all. The overhead of an update, which is most of its cost for small networks, is then paid once
instead of once per policy. Settings that do not change the arithmetic may differ, such as step
sizes, discounts and batch sizes. Missing transitions of a smaller batch are masked, and policies
without updates left are skipped. Each policy ends as it would have ended alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import NonFiniteError
from ding_lite.rl.batch import Array, NumpyArray, Rollout, Transitions, to_numpy
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.networks.inputs import RunningNorm
from ding_lite.rl.packing import as_floats
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy
from ding_lite.rl.policies.base.open_policy import OpenPolicy
from ding_lite.rl.policies.base.spaces import check_obs
from ding_lite.rl.policies.box_policy import BoxPolicy
from ding_lite.rl.policies.dqn import DQN
from ding_lite.rl.weights.flat_module import copied

Metrics = dict[str, float]


PolicyT = TypeVar("PolicyT", bound=DQN | BoxPolicy[Any, Any] | ActorCriticPolicy[Any])


@dataclass
class UpdateResult:
    """The result of the updates of one policy."""

    metrics: Metrics | None = None
    """The metrics of its last update; None without updates."""
    batch: Transitions | Sequence[Rollout] | None = None
    """The batch of its last update, or the rollouts of all its updates."""
    updates: int = 0
    """The number of its updates."""
    fault: NonFiniteError | None = None
    """The error that ended its updates: a loss was not finite. Its weights are as before it."""


class Stack(ABC, Generic[PolicyT]):
    """Memory in which policies of one architecture act and learn as one computation."""

    def __init__(self, like: PolicyT, count: int, module: nn.Module | None = None) -> None:
        self._module: Any = None if module is None else copied(module)
        """The module that `StackedModule` computes; None for a written-out backward."""
        weights, target = like.flat_weights
        self._spec, self._like = like.spec, like
        self._weights, self._grads = (StackedTensors(weights.shapes, count) for _ in range(2))
        self._target = StackedTensors(target.shapes, count)

    @classmethod
    @abstractmethod
    def key(cls, policy: PolicyT) -> Hashable | None:
        """Return what policies of one stack share besides their class and normalisation.

        None for one that learns alone. The observations of the policy are not packed, and its
        optimiser is the usual one.
        """

    def hold(self, policies: Sequence[PolicyT]) -> Callable[[NumpyArray], NumpyArray] | None:
        """Copy the weights of some policies, to act by them.

        Returns:
            A function from the observations of each of the G policies, [G, N, ...], or from those
            of all, [1, N, ...], to greedy actions, [G, N, ...]. It is valid until the stack is used
            for something else. None for modules, which act alone: the number of observations
            changes from call to call, and tracing takes longer.
        """
        if self._module is not None:
            return None
        count = self._take(policies)

        def greedy(obs: NumpyArray) -> NumpyArray:
            inputs_GNI = self._inputs(self._seen_by(policies, obs))
            return self._greedy(policies, inputs_GNI.expand(count, -1, -1))

        return greedy

    @abstractmethod
    def _greedy(self, policies: Sequence[PolicyT], inputs_GNI: Tensor) -> NumpyArray:
        """Return the greedy actions of MLPs with the weights that were copied, [G, N, ...]."""

    @abstractmethod
    def learn(
        self,
        policies: Sequence[PolicyT],
        *args: Any,  # noqa: ANN401 - what a kind of policy learns from
        **kwargs: Any,  # noqa: ANN401
    ) -> list[UpdateResult]:
        """Update at most as many policies as the stack has places; return their results."""

    def _take(self, policies: Sequence[PolicyT]) -> int:
        """Copy the weights that are learned, without the targets; return the number of policies."""
        flats = [policy.flat_weights[0].flat for policy in policies]
        torch._foreach_copy_(self._weights.rows[: len(flats)], flats)
        return len(flats)

    def _seen_by(self, policies: Sequence[PolicyT], obs: NumpyArray) -> Tensor:
        """Return observations, [G or 1, N, ...], normalised if the policies do so."""
        if policies[0].norm is None:
            return torch.from_numpy(obs)
        rows = np.broadcast_to(obs, (len(policies), *obs.shape[1:]))
        seen = [p.as_inputs(own) for p, own in zip(policies, rows, strict=True)]
        return torch.from_numpy(np.stack(seen))

    def _inputs(self, obs_GB: Tensor) -> Tensor:
        """Return observations of each policy as its network takes them, [G, B, ...]."""
        return as_floats(obs_GB).float().flatten(2) if self._module is None else obs_GB


class ReplayStack(Stack[PolicyT]):
    """A stack of policies that learn from one replay."""

    @abstractmethod
    def _update(self, layout: Layout[PolicyT], batch: Transitions) -> None:
        """Do one update of the policies with updates left."""

    def _observations(self, layout: Layout[PolicyT], batch: Transitions) -> tuple[Tensor, Tensor]:
        """Return each policy's observations and next observations, [G, B, ...], normalised if used.

        The running statistics of the policies are updated first.
        """
        pair: Sequence[Array] = (batch.obs, batch.next_obs)
        for each in pair:
            check_obs(each, self._spec)
        if layout.turns[0].policy.norm is not None:
            normed = [np.zeros(each.shape, dtype=np.float32) for each in pair]
            for row, turn in layout.learning():
                norm, own = cast(RunningNorm, turn.policy.norm), layout.rows_of(row)
                norm.update(batch.obs[own])
                for into, each in zip(normed, pair, strict=True):
                    into[own] = norm(to_numpy(each[own]))
            pair = normed
        shape = (layout.count, -1, *self._spec.obs_shape)
        obs, next_obs = (self._inputs(torch.as_tensor(each).reshape(shape)) for each in pair)
        return obs, next_obs

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
            sample: Samples a number of transitions. It is called once per round, for as many as the
                largest batch has for each policy with updates left.

        Returns:
            The result of each, in their order.

        Raises:
            ShapeError: The observations do not fit the environment of the policies.
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


class Turn(Generic[PolicyT]):
    """The updates of one policy."""

    def __init__(self, policy: PolicyT, size: int, updates: int) -> None:
        self.policy = policy
        self.size = size
        self.updates = updates
        self.outcome = UpdateResult()

    def passes(self, step: Callable[[], object]) -> bool:
        """Make a step; if a loss or a gradient is not finite, end the updates and return False."""
        try:
            step()
        except NonFiniteError as error:
            self.outcome.fault = error
            return False
        return True

    def count(self) -> bool:
        """Count an update; return whether it was the last one."""
        self.outcome.updates += 1
        return self.outcome.updates == self.updates


def obs_of(policy: OpenPolicy) -> tuple[tuple[int, ...], Any]:
    """Return the shape and the type of an observation as networks take it."""
    return policy.spec.obs_shape, policy.spec.obs_dtype if policy.norm is None else np.float32


def layers_of(policy: DQN | BoxPolicy[Any, Any] | ActorCriticPolicy[Any]) -> Hashable:
    """Return what policies with a written-out backward share."""
    weights, _ = policy.flat_weights
    return tuple(weights.shapes.items()), policy.config.activation


class Layout(Rows, Generic[PolicyT]):
    """The rows of the policies with updates left."""

    def __init__(self, turns: Sequence[Turn[PolicyT]]) -> None:
        super().__init__([turn.size for turn in turns], [turn.policy.gamma for turn in turns])
        self.turns = turns

    def learning(self) -> Iterator[tuple[int, Turn[PolicyT]]]:
        """Return the turns without a fault, each with its row."""
        return ((row, turn) for row, turn in enumerate(self.turns) if turn.outcome.fault is None)

    def part(self, batch: Transitions, row: int) -> Transitions:
        own = self.rows_of(row)
        return Transitions(*(getattr(batch, f.name)[own] for f in fields(Transitions)))

    def rows_of(self, row: int) -> slice:
        first = row * self.largest
        return slice(first, first + self.turns[row].size)


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
