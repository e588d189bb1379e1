"""Batched A2C, PPO and IMPALA policies of one architecture, each with rollouts of its own.

The updates of all go on in step: what they ask for at one time is one computation, of networks and
of losses. Each does its own steps of Adam, as one call for all takes hardly less time. A policy
with fewer updates, or with a loss that is not finite, leaves before the others.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from ding_lite.errors import NonFiniteError
from ding_lite.evolution.batched.base import Stack, UpdateResult, layers_of, obs_of
from ding_lite.evolution.batched.modules import StackedModule, stackable
from ding_lite.rl.batch import NumpyArray, Rollout
from ding_lite.rl.formulas.advantages import Advantages
from ding_lite.rl.formulas.distributions import Distribution, Gaussian
from ding_lite.rl.formulas.policy_losses import Settings, Steps, actor_critic_loss
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import CPU
from ding_lite.rl.networks.actor_critic import MLPActorCritic, branches
from ding_lite.rl.networks.layers import MLP
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy
from ding_lite.rl.policies.impala import IMPALA
from ding_lite.rl.policies.rollout_updates import (
    Descend,
    Estimate,
    Forward,
    ForwardResult,
    Infer,
    Request,
)
from ding_lite.rl.recorded.actor_critic import Recurrence
from ding_lite.rl.replay.rollouts import Minibatch

AnyPolicy: TypeAlias = ActorCriticPolicy[Any]
_OF_LOSS = ("action", "log_prob_B", "advantage_B", "target_B")
_ROUNDED = 64
"""The number of observations of which only values are computed is a multiple of this: episodes that
are cut off would make it another one each time, and each is traced anew."""


class RolloutStack(Stack[AnyPolicy]):
    """A stack of A2C, PPO or IMPALA policies of one architecture.

    Example:
        >>> from ding_lite.rl import PPO, PPOConfig, make_envs
        >>> envs = make_envs("CartPole-v1", 5)
        >>> policies = [PPO(envs.spec, PPOConfig(seed=seed)) for seed in range(3)]
        >>> RolloutStack(policies[0], 3).hold(policies)(envs.obs[None]).shape
        (3, 5)
    """

    def __init__(self, like: AnyPolicy, count: int) -> None:
        is_mlp = isinstance(like.net, MLPActorCritic)
        super().__init__(like, count, None if is_mlp else _Joined(like.net.module))
        self._first = cache(self._make_first)

    @classmethod
    def key(cls, policy: AnyPolicy) -> Hashable | None:
        """Return None for what `vmap` cannot compute, or not in less time."""
        net, config = policy.net, policy.config
        # The updates of an IMPALA with minibatches ask for a forward more or less.
        if isinstance(policy, IMPALA) and config.batch_size is not None:
            return None
        if isinstance(net, MLPActorCritic):
            return layers_of(policy)
        size = policy.state_size
        states = [((size,), np.float32)] if size else []
        joined = _Joined(net.module, at_once=True)
        return stackable(net.module, (joined, obs_of(policy), *states), has_memory=bool(size))

    def _greedy(self, policies: Sequence[AnyPolicy], inputs_GNI: Tensor) -> NumpyArray:
        both = self._first(len(policies))[0].forward(inputs_GNI).numpy()
        each = zip(policies, both[..., :-1], strict=True)
        return np.stack([policy.distribution.best(own_ND) for policy, own_ND in each])

    def learn(
        self, policies: Sequence[AnyPolicy], rollouts: Sequence[Sequence[Rollout]]
    ) -> list[UpdateResult]:
        """Do what `learn` of each policy does with its rollouts.

        Args:
            policies: At most as many as the stack has places, of its architecture.
            rollouts: Those of each.

        Returns:
            The result of each, in their order.
        """
        learning = [_Learning(*pair) for pair in zip(policies, rollouts, strict=True)]
        with np.errstate(over="ignore", invalid="ignore"):  # a loss that is not finite is a fault
            running = [each for each in learning if each.goes_on()]
            while running:
                running = self._go_on(running)
        return [each.result for each in learning]

    def _go_on(self, running: Sequence[_Learning]) -> list[_Learning]:
        """Do updates until one has done all of its own or has a fault; return the others."""
        flats = [each.policy.flat_weights[0].flat for each in running]
        count = self._take([each.policy for each in running])
        settings = Settings([each.policy.config for each in running], CPU)
        group = _Group(running, *self._first(count), settings)
        try:
            while True:
                self._answer(group)
                left = [each for each in running if each.goes_on()]
                if len(left) < count:
                    return left
        finally:
            torch._foreach_copy_(flats, self._weights.rows[:count])

    def _answer(self, group: _Group) -> None:
        requests = [cast(Any, each.request) for each in group.running]
        if isinstance(requests[0], Infer):
            value_GM = self._infer(group, requests)[..., -1].numpy()
            for row, each in enumerate(group.running):
                each.answer = value_GM[row, : len(requests[row].obs)]
        elif isinstance(requests[0], Forward):
            self._see(group, requests)
        elif isinstance(requests[0], Estimate):
            _estimate(group.running, requests)
        else:
            self._descend(group, requests)

    def _infer(self, group: _Group, requests: Sequence[Infer]) -> Tensor:
        inputs = self._inputs(_padded([one.obs for one in requests], unit=_ROUNDED))
        found: Tensor
        if self._like.state_size:
            states = _padded([one.state_MS for one in requests], unit=_ROUNDED)
            found = group.network.step(inputs, states)
        else:
            found = group.network.forward(inputs)
        return found

    def _see(self, group: _Group, requests: Sequence[Forward]) -> None:
        places = _Places(requests)
        both, behind = self._compute(group, requests, places, records=requests[0].is_training)
        log_prob = None
        if requests[0].action is not None:
            action = places.rows([one.action for one in requests])
            outputs = both[..., :-1].reshape(len(action), -1)
            log_prob = group.distribution.likelihood(outputs, action).log_prob_B
            log_prob = log_prob.reshape(both.shape[:-1])
        for place, each in zip(places.each, group.running, strict=True):
            value_B, log_prob_B = (
                None if found is None else found[place].reshape(-1)
                for found in (both[..., -1], log_prob)
            )
            states = None if behind is None else behind[place]
            each.answer = ForwardResult(value_B, log_prob_B, states)

    def _descend(self, group: _Group, requests: Sequence[Descend]) -> None:
        steps = [one.steps for one in requests]
        places = _Places(steps)
        if requests[0].seen is None:
            self._compute(group, steps, places, records=True)
        both, saved = group.kept
        flat_MO = both.reshape(-1, both.shape[-1])
        columns: Any = [places.rows([getattr(one, name) for one in steps]) for name in _OF_LOSS]
        values, outputs_grad_MD, value_grad_M = actor_critic_loss(
            self._like.policy_loss,
            places.layout,
            group.settings,
            group.distribution,
            Steps(*columns),
            flat_MO[:, :-1],
            flat_MO[:, -1],
        )
        grad_MO = np.concatenate((outputs_grad_MD, value_grad_M[:, None]), axis=1)
        group.network.backward(saved, torch.from_numpy(grad_MO.reshape(both.shape)))
        of_each = zip(*(value_G.tolist() for value_G in values.values()), strict=True)
        for row, (each, own) in enumerate(zip(group.running, of_each, strict=True)):
            each.descend(
                dict(zip(values, own, strict=True)), self._grads.rows[row], self._weights.rows[row]
            )

    def _compute(
        self,
        group: _Group,
        requests: Sequence[Forward | Minibatch],
        places: _Places,
        *,
        records: bool,
    ) -> tuple[NumpyArray, Tensor | None]:
        """Return outputs with values, and with memory the states behind each step."""
        behind: Tensor | None = None
        inputs = self._inputs(torch.from_numpy(places.padded([one.obs for one in requests])))
        if not self._like.state_size:
            both, saved = group.network.forward_saving(inputs)
        else:
            recurrences = [cast(Recurrence, one.recurrence) for one in requests]
            both, behind, saved = group.network.unroll(
                inputs,
                _padded([each.state_NS for each in recurrences]),
                ~_padded([each.ended_TN for each in recurrences], axes=2).unsqueeze(-1),
                records=records,
            )
        group.kept = both.numpy(), saved
        return both.numpy(), behind

    def _make_first(self, count: int) -> tuple[Any, Distribution]:
        like = self._like.distribution
        if isinstance(like, Gaussian):
            *_, name = self._like.flat_weights[0].shapes
            both = (tensors[name][:count] for tensors in (self._weights, self._grads))
            like = Gaussian(cast(Box, self._spec.action_space), *both)
        return self._make_network(count), like

    def _make_network(self, count: int) -> StackedModule | _Recurrent | _TwoMLPs:
        if self._module is not None:
            shapes = self._like.flat_weights[0].shapes
            apart = [*shapes][-1:] if self._like.net.num_apart else []

            def rename(name: str) -> str | None:
                own = name.removeprefix(_OWN)
                return None if own in apart else own

            modules = StackedModule(self._module, self._weights, self._grads, count, rename=rename)
            if self._like.state_size:
                return _Recurrent(modules, self._like.state_size, encodes=self._module.encodes)
            return modules
        module: Any = self._like.net.module
        return _TwoMLPs(*branches(module, self._weights, self._grads, first=count))


@dataclass
class _Group:
    """The updates that go on at one time, and the networks of their policies."""

    running: Sequence[_Learning]
    network: Any
    """The network of all; values are the last of its outputs."""
    distribution: Distribution
    settings: Settings
    kept: Any = None
    """The outputs of the last forward, and what its backward needs."""


class _Learning:
    """The updates of one policy."""

    def __init__(self, policy: AnyPolicy, rollouts: Sequence[Rollout]) -> None:
        self.policy = policy
        self.request: Request
        self.answer: Any = None
        self.result = UpdateResult(batch=rollouts)
        self._updates = policy.updates(rollouts)
        self._before = policy.train_iter
        self._has_ended = False

    def goes_on(self) -> bool:
        """Pass the answer to the updates; return whether they have made another request."""
        if self._has_ended:
            return False
        answer, self.answer = self.answer, None
        try:
            if self.result.fault is None:
                self.request = self._updates.send(answer)
                return True
        except StopIteration as end:
            self.result.metrics = {name: float(value) for name, value in end.value.items()}
        self._has_ended = True
        self.result.updates = self.policy.train_iter - self._before
        return False

    def descend(self, values: dict[str, float], grad_P: Tensor, weights_P: Tensor) -> None:
        try:
            self.policy.check_finite(values["loss"])
            self.policy.descend(values, grad_P, weights_P)
        except NonFiniteError as error:
            self.result.fault = error
        self.answer = values


def _estimate(running: Sequence[_Learning], requests: Sequence[Estimate]) -> None:
    """Estimate the advantages of all side by side, as those of more environments.

    Behind a shorter rollout there are zeros, which change nothing before them.
    """
    columns = [*zip(*(one.columns_TN for one in requests), strict=True)]
    shapes = [own.shape for own in columns[0]]
    longest, widest = map(max, zip(*shapes, strict=True))
    places: list[Any] = [np.s_[:steps, row, :envs] for row, (steps, envs) in enumerate(shapes)]
    joined = []
    for column in columns:
        array_TGN = np.zeros((longest, len(requests), widest), column[0].dtype)
        for place, own in zip(places, column, strict=True):
            array_TGN[place] = own
        joined.append(array_TGN.reshape(longest, -1))
    settings = {
        name: np.repeat(np.array([one.settings[name] for one in requests], np.float32), widest)
        for name in requests[0].settings
    }
    found = requests[0].by(*joined, **settings)
    pair = [part.reshape(array_TGN.shape) for part in (found.advantage_TB, found.target_TB)]
    for place, each in zip(places, running, strict=True):
        each.answer = Advantages(*(part[place] for part in pair))


class _Places:
    """Joins arrays of env steps of each policy, [B, ...] or [T, N, ...], padded to one size."""

    def __init__(self, requests: Sequence[Forward | Minibatch]) -> None:
        self._shapes = tuple(
            (len(one.obs),) if one.recurrence is None else one.recurrence.ended_TN.shape
            for one in requests
        )
        self.each: list[Any] = [(row, *map(slice, shape)) for row, shape in enumerate(self._shapes)]
        self.layout = _layout(self._shapes)

    def padded(self, arrays: Sequence[NumpyArray]) -> NumpyArray:
        """Return the merged steps of each policy as one array, [G, B, ...] or [G, T, N, ...]."""
        pairs = zip(self._shapes, arrays, strict=True)
        own = [array.reshape(*shape, *array.shape[1:]) for shape, array in pairs]
        return _padded(own, axes=len(self._shapes[0])).numpy()

    def rows(self, arrays: Sequence[NumpyArray]) -> NumpyArray:
        """Return the merged steps of one policy after the other, [M, ...]."""
        return self.padded(arrays).reshape(self.layout.num_rows, *arrays[0].shape[1:])


@lru_cache(maxsize=64)
def _layout(shapes: tuple[tuple[int, ...], ...]) -> Rows:
    mask = _padded([np.ones(shape, np.bool_) for shape in shapes], axes=len(shapes[0]))
    sizes = [math.prod(shape) for shape in shapes]
    return Rows(sizes, [1.0] * len(sizes), mask_GB=mask.flatten(1).numpy())


def _padded(arrays: Sequence[Any], *, axes: int = 1, unit: int = 1) -> Tensor:
    """Return arrays with zeros behind each of the first axes, as rows of one tensor.

    The length of each axis is a multiple of `unit`.
    """
    shapes = {own.shape for own in arrays}
    if len(shapes) == unit == 1:  # takes half of the time
        return torch.from_numpy(np.concatenate(arrays).reshape(len(arrays), *shapes.pop()))
    longest = map(max, zip(*(shape[:axes] for shape in shapes), strict=True))
    shape = [-(-length // unit) * unit for length in longest]
    padded = np.zeros((len(arrays), *shape, *arrays[0].shape[axes:]), arrays[0].dtype)
    for row, own in enumerate(arrays):
        part: Any = (row, *map(slice, own.shape[:axes]))
        padded[part] = own
    return torch.from_numpy(padded)


_OWN = "own."


class _Joined(nn.Module):
    """An actor-critic that returns its outputs and the values as one tensor, [B, D + 1].

    With states, [B, S], the next ones are behind them, [B, D + 1 + S]. What of it needs no states
    is computed without them, for all steps at once, unless `at_once`.
    """

    def __init__(self, own: Any, *, at_once: bool = False) -> None:  # noqa: ANN401 - a module
        super().__init__()
        self.own = own
        self.encodes = hasattr(own, "recur") and not at_once

    def forward(self, inputs: Tensor, *state: Tensor) -> Tensor:
        if self.encodes and not state:
            encoded: Tensor = self.own.encode(inputs)
            return encoded
        compute = self.own.recur if self.encodes else self.own
        outputs_BD, value_B, *behind = compute(inputs, *state)
        return torch.cat((outputs_BD, value_B.unsqueeze(-1), *behind), dim=-1)


class _Recurrent:
    """The modules of several policies with memory."""

    def __init__(self, modules: StackedModule, state_size: int, *, encodes: bool) -> None:
        self._modules, self._state_size, self._encodes = modules, state_size, encodes

    def step(self, obs: Tensor, state_GNS: Tensor) -> Tensor:
        inputs = self._modules.forward(obs) if self._encodes else obs
        return self._split(self._modules.forward(inputs, state_GNS))[0]

    def unroll(
        self, obs: Tensor, state_GNS: Tensor, goes_on_GTN1: Tensor, *, records: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Go through sequences, [G, T, N, ...]; return outputs, the states behind, and a record."""
        count, num_steps, num_envs = obs.shape[:3]
        forward = self._modules.forward_recorded if records else self._modules.forward
        with torch.set_grad_enabled(records):
            if self._encodes:
                obs = forward(obs.flatten(1, 2)).view(count, num_steps, num_envs, -1)
            both, behind = [], []
            inputs = obs.transpose(0, 1).contiguous()
            for input_GN, goes_on_GN1 in zip(inputs, goes_on_GTN1.unbind(1), strict=True):
                own, state_GNS = self._split(forward(input_GN, state_GNS))
                both.append(own)
                behind.append(state_GNS.detach())
                state_GNS = torch.where(goes_on_GN1, state_GNS, 0.0)
            both_GTNO = torch.stack(both, dim=1)
        return both_GTNO.detach(), torch.stack(behind, dim=1), both_GTNO

    def backward(self, saved: Tensor, grad: Tensor) -> None:
        self._modules.backward_recorded(saved, grad)

    def _split(self, found: Tensor) -> tuple[Tensor, Tensor]:
        return found[..., : -self._state_size], found[..., -self._state_size :]


class _TwoMLPs:
    """The actors and critics of several policies; the values are the last of their outputs."""

    def __init__(self, actor: MLP, critic: MLP) -> None:
        self._actor, self._critic = actor, critic

    def forward(self, obs_GBI: Tensor) -> Tensor:
        return self.forward_saving(obs_GBI)[0]

    def forward_saving(self, obs_GBI: Tensor) -> tuple[Tensor, tuple[list[Tensor], list[Tensor]]]:
        saved = self._actor.forward(obs_GBI), self._critic.forward(obs_GBI)
        return torch.cat([outputs[-1] for outputs in saved], dim=-1), saved

    def backward(self, saved: tuple[list[Tensor], list[Tensor]], grad_GBO: Tensor) -> None:
        of_actor, of_critic = saved
        self._actor.backward(of_actor, grad_GBO[..., :-1])
        self._critic.backward(of_critic, grad_GBO[..., -1:])
