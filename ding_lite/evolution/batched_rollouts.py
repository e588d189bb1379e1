"""Batched A2C, PPO and IMPALA policies of one architecture, each with rollouts of its own.

Their networks are computed together, and each policy computes its own losses and steps, as they
take little time. The updates of all go on in step: what they ask of a network at one time is one
computation. A policy with fewer updates, or with a loss that is not finite, leaves before the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import NonFiniteError
from ding_lite.evolution.batched_modules.stacked import (
    StackedModule,
    StackedOutputs,
    architecture,
    can_stack,
)
from ding_lite.evolution.batched_policies import Stack, UpdateResult, inputs_dtype
from ding_lite.rl.batch import NumpyArray, Rollout
from ding_lite.rl.networks.actor_critic import MLPActorCritic
from ding_lite.rl.networks.inputs import as_floats
from ding_lite.rl.networks.layers import MLP, names_of
from ding_lite.rl.policies.actor_critic import (
    ActorCriticPolicy,
    Ask,
    Backward,
    Look,
    best_actions,
    network_of,
    updates_of,
)
from ding_lite.rl.policies.impala import IMPALA
from ding_lite.rl.recorded.actor_critic import Unrolled
from ding_lite.rl.weights.flat_module import copied

AnyPolicy: TypeAlias = ActorCriticPolicy[Any]
_ROUNDED = 64
"""The number of observations of which only values are computed is a multiple of this: episodes that
are cut off would make it another one each time, and each is traced anew."""


class StackedActorCritics(Protocol):
    """The networks of the first policies of a stack; the values are the last of their outputs."""

    def forward(self, obs: Tensor, /) -> Tensor:
        """Compute outputs and values, [G, B, D + 1]; nothing is recorded."""

    def forward_saving(self, obs: Tensor, /) -> tuple[Tensor, Any]:
        """Compute them, and return what `backward` needs."""

    def backward(self, saved: Any, grad: Tensor, /) -> None:  # noqa: ANN401 - each its own
        """Write the gradients of the weights, given those of outputs and values."""


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
        super().__init__(like, count)
        net = network_of(like)
        self._like = like
        self._num_learned = len(net.weights.flat) - net.num_apart
        self._module: _Joined | None = None
        if not isinstance(net, MLPActorCritic):
            self._module = cast(_Joined, copied(_Joined(net.module)))
        self._first = cache(self._make_network)
        self._saved: Any = None
        """The intermediate values of the last forward, for its backward."""
        self._shape: tuple[int, ...] = ()
        """The shape of its outputs, [G, B, D + 1], or [G, T, N, D + 1] with memory."""

    @classmethod
    def key(cls, policy: AnyPolicy) -> Hashable | None:
        """Return None for what `vmap` cannot compute, or not in less time."""
        net, config = network_of(policy), policy.config
        # The updates of an IMPALA with minibatches ask for a forward more or less.
        if isinstance(policy, IMPALA) and config.batch_size is not None:
            return None
        if isinstance(net, MLPActorCritic):
            form = tuple(net.weights.shapes.items()), config.activation
            return type(policy), form, config.normalize_obs
        own = architecture(net.module, has_memory=bool(policy.state_size))
        obs: Any = (policy.spec.obs_shape, inputs_dtype(policy))
        state: Any = ((policy.state_size,), np.float32)
        inputs = (obs, state) if policy.state_size else (obs,)
        if own is None or not can_stack(own, (_Joined(net.module, at_once=True), inputs)):
            return None
        return type(policy), own, config.normalize_obs

    def hold(self, policies: Sequence[AnyPolicy]) -> Callable[[NumpyArray], NumpyArray]:
        """Copy the weights of some policies; return a function that acts greedily by them.

        Modules compute one after the other: the number of observations changes from call to call,
        and tracing takes longer.
        """
        count = self._take(policies)

        def greedy(obs: NumpyArray) -> NumpyArray:
            if self._module is not None:
                pairs = zip(policies, np.broadcast_to(obs, (count, *obs.shape[1:])), strict=True)
                return np.stack([policy.act(row, explore=False) for policy, row in pairs])
            inputs = self._inputs(torch.from_numpy(self._seen_by(policies, obs)))
            mlps = cast(StackedActorCritics, self._first(count))
            both: NumpyArray = mlps.forward(inputs.expand(count, -1, -1)).numpy()
            each = zip(policies, both[..., :-1], strict=True)
            return np.stack([best_actions(policy, own_ND) for policy, own_ND in each])

        return greedy

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
        running, answered = learning, None
        while running := [each for each in running if each.goes_on()]:
            if answered in (None, Backward):
                self._take([each.policy for each in running])
                for row, each in enumerate(running):
                    each.row = row
                count = len(running)
            answered = type(running[0].asked)
            self._answer(running, self._first(count), count)
        return [each.result for each in learning]

    def _answer(self, running: Sequence[_Learning], network: Any, count: int) -> None:  # noqa: ANN401 - of `_make_network`
        """Compute what all ask for. `count` includes those that have left since the forward."""
        first = running[0].asked
        if isinstance(first, Backward):
            self._write_gradients(running, network)
            return
        if isinstance(first, Look):
            both, behind = self._look(running, network, count), None
        else:
            both, behind = self._compute(running, network, count, records=first.is_training)
        for each in running:
            place = each.place_of_answer
            own_BO = both[place].numpy().reshape(-1, both.shape[-1])
            value_B = np.ascontiguousarray(own_BO[:, -1])
            if isinstance(first, Look):
                each.answer = value_B
                continue
            each.place = place
            saved = None if behind is None else Unrolled(both[place], both[place], behind[place])
            each.answer = own_BO[:, :-1], value_B, saved

    def _look(self, running: Sequence[_Learning], network: Any, count: int) -> Tensor:  # noqa: ANN401
        rows, asked = [each.row for each in running], [cast(Look, each.asked) for each in running]
        inputs = self._inputs(_padded(rows, [one.obs for one in asked], count, unit=_ROUNDED))
        if not self._like.state_size:
            return cast(StackedActorCritics, network).forward(inputs)
        states = _padded(rows, [one.state_MS for one in asked], count, unit=_ROUNDED)
        return cast(_Recurrent, network).step(inputs, states)

    def _compute(
        self,
        running: Sequence[_Learning],
        network: Any,  # noqa: ANN401
        count: int,
        *,
        records: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return outputs with values, and with memory the states behind each step."""
        rows, asked = [each.row for each in running], [cast(Any, each.asked) for each in running]
        behind: Tensor | None = None
        if not self._like.state_size:
            inputs = self._inputs(_padded(rows, [one.obs for one in asked], count))
            both, saved = cast(StackedActorCritics, network).forward_saving(inputs)
        else:
            ended = [one.unroll.ended_TN for one in asked]
            pairs = zip([one.obs for one in asked], ended, strict=True)
            obs = [own.reshape(*end_TN.shape, *own.shape[1:]) for own, end_TN in pairs]
            both, behind, saved = cast(_Recurrent, network).unroll(
                self._inputs(_padded(rows, obs, count, axes=2)),
                _padded(rows, [one.unroll.state_NS for one in asked], count),
                ~_padded(rows, ended, count, axes=2).unsqueeze(-1),
                records=records,
            )
        if records:
            self._saved, self._shape = saved, both.shape
        return both, behind

    def _write_gradients(self, running: Sequence[_Learning], network: Any) -> None:  # noqa: ANN401
        grad = np.zeros(self._shape, np.float32)
        for each in running:
            _, outputs_BD, value_B = cast(Backward, each.asked)
            own = np.concatenate((outputs_BD, value_B[:, None]), axis=1)
            grad[each.place] = own.reshape(grad[each.place].shape)
        network.backward(self._saved, torch.from_numpy(grad))
        size = self._num_learned
        torch._foreach_copy_(
            [network_of(each.policy).grads.flat[:size] for each in running],
            [self._grads.rows[each.row][:size] for each in running],
        )

    def _inputs(self, obs_GB: Tensor) -> Tensor:
        """Return observations of each policy as its network takes them, [G, B, ...]."""
        return obs_GB if self._module is not None else as_floats(obs_GB).flatten(2)

    def _make_network(self, count: int) -> StackedActorCritics | _Recurrent:
        if self._module is not None:
            names = [name for name, _ in self._module.named_parameters()]
            parameters = {n: self._weights[n.removeprefix(_OWN)][:count] for n in names}
            grads = [self._grads[n.removeprefix(_OWN)][:count] for n in names]
            modules = StackedModule(self._module, parameters, grads)
            if self._like.state_size:
                return _Recurrent(modules, self._like.state_size, encodes=self._module.encodes)
            return cast(StackedActorCritics, StackedOutputs(modules))
        config = self._like.config
        return _TwoMLPs(
            *(
                MLP(
                    self._weights,
                    self._grads,
                    names_of(name, len(config.hidden)),
                    f"{name}.head",
                    activation=config.activation,
                    first=count,
                )
                for name in ("actor", "critic")
            )
        )


class _Learning:
    """The updates of one policy."""

    def __init__(self, policy: AnyPolicy, rollouts: Sequence[Rollout]) -> None:
        self.policy = policy
        self.row = 0
        self.place: tuple[Any, ...] = ()
        """The place of its newest forward."""
        self.asked: Ask
        self.answer: Any = None
        self.result = UpdateResult(batch=rollouts)
        self._updates = updates_of(policy, rollouts)
        self._before = policy.train_iter

    def goes_on(self) -> bool:
        """Go on with the answer up to what is asked next; return whether anything is."""
        answer, self.answer = self.answer, None
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # a loss not finite is a fault
                self.asked = self._updates.send(answer)
            return True
        except StopIteration as end:
            self.result.metrics = end.value
        except NonFiniteError as error:
            self.result.fault = error
        self.result.updates = self.policy.train_iter - self._before
        return False

    @property
    def place_of_answer(self) -> tuple[Any, ...]:
        """The place of what it asks about among what all ask about: of [B], or of [T, N]."""
        unroll = getattr(self.asked, "unroll", None)
        shape = (len(cast(Any, self.asked).obs),) if unroll is None else unroll.ended_TN.shape
        return (self.row, *map(slice, shape))


def _padded(
    rows: Sequence[int], arrays: Sequence[Any], count: int, *, axes: int = 1, unit: int = 1
) -> Tensor:
    """Return arrays with zeros behind each of the first axes, as rows of one tensor.

    The length of each axis is a multiple of `unit`.
    """
    longest = map(max, zip(*(own.shape[:axes] for own in arrays), strict=True))
    shape = [-(-length // unit) * unit for length in longest]
    padded = np.zeros((count, *shape, *arrays[0].shape[axes:]), arrays[0].dtype)
    for row, own in zip(rows, arrays, strict=True):
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
        self.backward = modules.backward

    def step(self, obs: Tensor, state_GNS: Tensor) -> Tensor:
        with torch.no_grad():
            inputs = self._modules.forward(obs)[-1] if self._encodes else obs
            return self._split(self._modules.forward(inputs, state_GNS)[-1])[0]

    def unroll(
        self, obs: Tensor, state_GNS: Tensor, goes_on_GTN1: Tensor, *, records: bool
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Go through sequences, [G, T, N, ...]; return outputs, the states behind, and a record."""
        count, num_steps, num_envs = obs.shape[:3]
        with torch.set_grad_enabled(records):
            if self._encodes:
                obs = self._modules.forward(obs.flatten(1, 2))[-1]
                obs = obs.view(count, num_steps, num_envs, -1)
            both, behind = [], []
            inputs = obs.transpose(0, 1).contiguous()
            for input_GN, goes_on_GN1 in zip(inputs, goes_on_GTN1.unbind(1), strict=True):
                found = self._modules.forward(input_GN, state_GNS)[-1]
                own, state_GNS = self._split(found)
                both.append(own)
                behind.append(state_GNS.detach())
                state_GNS = torch.where(goes_on_GN1, state_GNS, 0.0)
            both_GTNO = torch.stack(both, dim=1)
        return both_GTNO.detach(), torch.stack(behind, dim=1), [both_GTNO]

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
