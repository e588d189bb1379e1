"""DQNs of one architecture that learn as one: a population is a batch.

The weights of all agents lie in the rows of one matrix, and each layer is one multiplication for
all of them. What an update costs beside the arithmetic, which is most of it for small networks,
is then paid once instead of once an agent. Step sizes, discounts, batch sizes and all that needs
no other arithmetic may differ from agent to agent; agents with fewer transitions in a batch, or
fewer updates, are masked or left out. Each agent ends where it would have ended alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import NonFiniteError
from ding_lite.rl.batch import Array, FloatArray, NumpyArray, Transitions, to_numpy
from ding_lite.rl.networks.action_values import StackedLinear
from ding_lite.rl.networks.inputs import as_floats
from ding_lite.rl.policies.base import check_obs
from ding_lite.rl.policies.dqn import DQN
from ding_lite.rl.protocols import Policy
from ding_lite.rl.returns import bootstrapped_targets

Metrics = dict[str, float]


def stack_key(policy: Policy) -> Hashable | None:
    """Return what policies must have in common to learn together; None if one learns alone.

    Alone learn all but DQNs, and of those the ones that see images, duel, normalise observations
    or share gradients with other nodes.
    """
    if not isinstance(policy, DQN) or type(policy) is not DQN:
        return None
    config = policy.config
    if policy.spec.is_image or config.dueling or config.normalize_obs or policy.reduce_gradient:
        return None
    weights, _ = policy.flat_weights
    return (tuple(weights.shapes.items()), config.activation, config.loss, config.double)


@dataclass
class Outcome:
    """What came of the updates of one policy."""

    metrics: Metrics | None = None
    """What its last update reports; None if there was none."""
    batch: Transitions | None = None
    """What it learned from last."""
    updates: int = 0
    """How many it has done."""
    fault: NonFiniteError | None = None
    """Why it has done no more: a loss was no longer finite. Its weights are as before then."""


class Stack:
    """Room for some DQNs of one architecture to act and learn in.

    Args:
        like: One of them.
        count: How many there may be at a time.

    Example:
        >>> from ding_lite.rl import DQNConfig, make_envs
        >>> spec = make_envs("CartPole-v1", 1).spec
        >>> policies = [DQN(spec, DQNConfig(seed=seed)) for seed in range(3)]
        >>> Stack(policies[0], 3).q_values(policies, np.zeros((3, 5, 4), np.float32)).shape
        (3, 5, 2)
    """

    def __init__(self, like: DQN, count: int) -> None:
        """Reserve memory."""
        weights, _ = like.flat_weights
        config = like.config
        self._spec = like.spec
        self._depth = len(config.hidden)
        self._is_relu = config.activation == "relu"
        self._is_double = config.double
        self._is_huber = config.loss == "huber"
        self._weights, self._target, self._grads = (_Rows(weights.shapes, count) for _ in range(3))
        self._first_online = cache(partial(self._make_network, self._weights))
        self._first_target = cache(partial(self._make_network, self._target))

    def q_values(self, policies: Sequence[DQN], obs: FloatArray) -> FloatArray:
        """Estimate the returns of the actions for observations of each policy.

        Args:
            policies: As many as there is room for, or fewer.
            obs: [G, N, ...], N observations for each of the G policies.

        Returns:
            Values, [G, N, A].
        """
        return self.hold(policies)(obs)

    def hold(self, policies: Sequence[DQN]) -> Callable[[FloatArray], FloatArray]:
        """Take over the weights of some policies as they are now.

        Returns:
            What `q_values` does with them, until this stack is used for something else. Instead of
            observations for each policy it also takes [1, N, ...], which are for all of them.
        """
        flats = [policy.flat_weights[0].flat for policy in policies]
        torch._foreach_copy_(self._weights.rows[: len(flats)], flats)
        network = self._first_online(len(flats))

        def q_values(obs: FloatArray) -> FloatArray:
            vectors = as_floats(torch.from_numpy(obs)).flatten(2).expand(len(flats), -1, -1)
            values: FloatArray = network.forward(vectors)[-1].numpy()
            return values

        return q_values

    def learn(
        self,
        policies: Sequence[DQN],
        sizes: Sequence[int],
        updates: Sequence[int],
        sample: Callable[[int], Transitions],
    ) -> list[Outcome]:
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
        turns = [_Turn(policies[index], sizes[index], updates[index]) for index in order]
        pairs = [turn.policy.flat_weights for turn in turns]
        flats = [weights.flat for weights, _ in pairs] + [target.flat for _, target in pairs]
        rows = self._weights.rows[: len(turns)] + self._target.rows[: len(turns)]
        torch._foreach_copy_(rows, flats)

        batch_of = cache(lambda active: _Layout(turns[:active]))
        for done in range(max(updates, default=0)):
            # Who has the most updates to do comes first, so those who still learn lie together.
            layout = batch_of(sum(turn.updates > done for turn in turns))
            self._update(layout, sample(layout.num_rows))

        torch._foreach_copy_(flats, rows)
        outcomes = dict(zip(order, (turn.outcome for turn in turns), strict=True))
        return [outcomes[index] for index in range(len(policies))]

    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is a fault, not warned of
    def _update(self, layout: _Layout, batch: Transitions) -> None:
        """Do one update of those who still learn."""
        check_obs(batch.obs, self._spec)
        q_GBA, saved, next_q_GB = self._evaluate(layout, batch)
        target_GB = bootstrapped_targets(
            layout.fold(batch.reward),
            layout.fold(batch.terminated),
            layout.fold(batch.num_steps),
            next_q_GB,
            gamma=layout.gamma_G1,
        )
        of_action = (*layout.index, layout.fold(batch.action))
        q_GB = q_GBA[of_action]
        error_GB = q_GB - target_GB
        slope_GB = np.minimum(np.maximum(error_GB, np.float32(-1.0)), np.float32(1.0))
        if not self._is_huber:
            slope_GB = error_GB
        loss_G = layout.mean(slope_GB * (error_GB - np.float32(0.5 * self._is_huber) * slope_GB))
        grad_GBA = np.zeros(q_GBA.shape, dtype=np.float32)
        grad_GBA[of_action] = layout.per_size(slope_GB * np.float32(2.0 - self._is_huber))
        self._first_online(layout.count).backward(saved, torch.from_numpy(grad_GBA))

        finite_G = np.isfinite(loss_G)
        for row, turn in enumerate(layout.turns):
            if finite_G[row] and turn.outcome.fault is None:
                turn.policy.step(
                    self._grads.rows[row], self._weights.rows[row], self._target.rows[row]
                )
            turn.note(row, loss_G, lambda: layout.mean(q_GB), layout, batch)

    def _evaluate(
        self, layout: _Layout, batch: Transitions
    ) -> tuple[FloatArray, list[Tensor], FloatArray]:
        """Return Q(x, .), what its backward needs, and the value of x'."""
        count, largest = layout.count, layout.largest
        online, target = self._first_online(count), self._first_target(count)
        obs, next_obs = (_stacked(torch.as_tensor(o), count) for o in (batch.obs, batch.next_obs))
        next_target_GBA = target.forward(next_obs)[-1].numpy()
        if not self._is_double:
            outputs = online.forward(obs)
            return outputs[-1].numpy(), outputs, next_target_GBA.max(axis=2)
        both = online.forward(torch.cat((obs, next_obs), dim=1))
        saved = [output[:, :largest] for output in both]
        best_GB = both[-1].numpy()[:, largest:].argmax(axis=2)
        return saved[-1].numpy(), saved, next_target_GBA[(*layout.index, best_GB)]

    def _make_network(self, weights: _Rows, first: int) -> _Network:
        return _Network(weights, self._grads, self._depth, first=first, is_relu=self._is_relu)


class _Turn:
    """The updates of one policy."""

    def __init__(self, policy: DQN, size: int, updates: int) -> None:
        self.policy = policy
        self.size = size
        self.updates = updates
        self.outcome = Outcome()

    def note(
        self,
        row: int,
        loss_G: FloatArray,
        q_mean_G: Callable[[], FloatArray],
        layout: _Layout,
        batch: Transitions,
    ) -> None:
        """Remember what came of an update."""
        outcome = self.outcome
        if outcome.fault is not None:
            return
        try:
            self.policy.check_loss(float(loss_G[row]))
        except NonFiniteError as error:
            outcome.fault = error
            return
        outcome.updates += 1
        if outcome.updates == self.updates:
            outcome.metrics = {"loss": float(loss_G[row]), "q_mean": float(q_mean_G()[row])}
            if self.policy.config.lr_end is not None:
                outcome.metrics["lr"] = self.policy.lr
            outcome.batch = layout.part(batch, row)


class _Layout:
    """How the batches of some policies lie in one: each has as many rows as the largest."""

    def __init__(self, turns: Sequence[_Turn]) -> None:
        self.turns = turns
        self.count = len(turns)
        sizes = [turn.size for turn in turns]
        self.largest = max(sizes)
        self.num_rows = self.count * self.largest
        self.gamma_G1 = np.array([[turn.policy.gamma] for turn in turns], dtype=np.float32)
        self.index = (np.arange(self.count)[:, None], np.arange(self.largest)[None])
        self._size_G1 = np.array(sizes, dtype=np.float32)[:, None]
        self._mask_GB = None
        if min(sizes) < self.largest:
            self._mask_GB = (self.index[1] < self._size_G1).astype(np.float32)

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
        last = first + self.turns[row].size
        return Transitions(*(getattr(batch, f.name)[first:last] for f in fields(Transitions)))


class _Rows:
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


class _Network:
    """The Q-networks in the first rows, computed together."""

    def __init__(
        self, weights: _Rows, grads: _Rows, depth: int, *, first: int, is_relu: bool
    ) -> None:
        names = [*(f"torso.{layer}" for layer in range(depth)), "head"]
        self._layers = [StackedLinear(weights, grads, name=name, first=first) for name in names]
        self._is_relu = is_relu

    def forward(self, x_GBI: Tensor) -> list[Tensor]:
        """Compute the output of each layer, the input first and the values last."""
        outputs = [x_GBI]
        *hidden, head = self._layers
        for layer in hidden:
            sums = layer.forward(outputs[-1])
            outputs.append(sums.relu_() if self._is_relu else sums.tanh_())
        outputs.append(head.forward(outputs[-1]))
        return outputs

    def backward(self, outputs: Sequence[Tensor], grad_GBO: Tensor) -> None:
        """Write the gradients, given those of the values."""
        for index in reversed(range(len(self._layers))):
            layer, x_GBI = self._layers[index], outputs[index]
            layer.backward(x_GBI, grad_GBO)
            if index:
                grad_GBO = layer.backward_input(grad_GBO)
                if self._is_relu:
                    torch.ops.aten.threshold_backward.grad_input(
                        grad_GBO, x_GBI, 0, grad_input=grad_GBO
                    )
                else:
                    torch.ops.aten.tanh_backward.grad_input(grad_GBO, x_GBI, grad_input=grad_GBO)


def _stacked(obs: Tensor, count: int) -> Tensor:
    """Give each policy its observations, as vectors."""
    return as_floats(obs).reshape(count, -1, math.prod(obs.shape[1:]))
