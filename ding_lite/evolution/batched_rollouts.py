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
from ding_lite.evolution.batched_policies import Stack, UpdateResult
from ding_lite.rl.batch import NumpyArray, Rollout
from ding_lite.rl.networks.actor_critic import MLPActorCritic
from ding_lite.rl.networks.inputs import as_floats
from ding_lite.rl.networks.layers import MLP, names_of
from ding_lite.rl.policies.actor_critic import (
    ActorCriticPolicy,
    Ask,
    Backward,
    Forward,
    best_actions,
    network_of,
    updates_of,
)
from ding_lite.rl.policies.impala import IMPALA
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

    def backward(self, saved: Any, grad_GBO: Tensor, /) -> None:  # noqa: ANN401 - each its own
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
        self._module = copied(_Joined(net.module)) if like.has_own_network else None
        self._first = cache(self._make_network)
        self._saved: Any = None
        """The intermediate values of the last forward, for its backward."""
        self._shape: tuple[int, ...] = ()
        """The shape of its outputs, [G, B, D + 1]."""

    @classmethod
    def key(cls, policy: AnyPolicy) -> Hashable | None:
        """Return None for networks of images or with memory, and for what `vmap` cannot compute."""
        net, config = network_of(policy), policy.config
        # The updates of an IMPALA with minibatches ask for a forward more or less.
        if policy.state_size or (isinstance(policy, IMPALA) and config.batch_size is not None):
            return None
        if policy.has_own_network:
            form = architecture(net.module)
            obs = (policy.spec.obs_shape, policy.spec.obs_dtype)
            if form is None or not can_stack(form, (_Joined(net.module), (obs,))):
                return None
            return type(policy), form
        if not isinstance(net, MLPActorCritic):
            return None
        return type(policy), tuple(net.weights.shapes.items()), config.activation

    def hold(self, policies: Sequence[AnyPolicy]) -> Callable[[NumpyArray], NumpyArray]:
        """Copy the weights of some policies; return a function that acts greedily by them.

        Modules of users compute one after the other: the number of observations changes from call
        to call, and tracing takes longer.
        """
        count = self._take(policies)

        def greedy(obs: NumpyArray) -> NumpyArray:
            rows = np.broadcast_to(obs, (count, *obs.shape[1:]))
            if self._module is not None:
                pairs = zip(policies, rows, strict=True)
                return np.stack([policy.act(row, explore=False) for policy, row in pairs])
            vectors_GNI = self._inputs(np.ascontiguousarray(rows))
            both: NumpyArray = self._first(count).forward(vectors_GNI).numpy()
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

    def _answer(
        self, running: Sequence[_Learning], network: StackedActorCritics, count: int
    ) -> None:
        """Compute what all ask for. `count` includes those that have left since the forward."""
        if isinstance(running[0].asked, Backward):
            grad_GBO = np.zeros(self._shape, np.float32)
            for each in running:
                _, outputs_BD, value_B = cast(Backward, each.asked)
                grad_GBO[each.row, : len(value_B), :-1] = outputs_BD
                grad_GBO[each.row, : len(value_B), -1] = value_B
            network.backward(self._saved, torch.from_numpy(grad_GBO))
            size = self._num_learned
            torch._foreach_copy_(
                [network_of(each.policy).grads.flat[:size] for each in running],
                [self._grads.rows[each.row][:size] for each in running],
            )
            return
        is_recorded = isinstance(running[0].asked, Forward)
        given = [cast(Any, each.asked).obs for each in running]
        largest = max(map(len, given))
        if not is_recorded:
            largest = -(-largest // _ROUNDED) * _ROUNDED
        obs_GB = np.zeros((count, largest, *self._spec.obs_shape), self._spec.obs_dtype)
        for each, obs_B in zip(running, given, strict=True):
            obs_GB[each.row, : len(obs_B)] = obs_B
        inputs = self._inputs(obs_GB)
        if is_recorded:
            both, self._saved = network.forward_saving(inputs)
            self._shape = both.shape
        else:
            both = network.forward(inputs)
        both_GBO = both.numpy()
        for each, obs_B in zip(running, given, strict=True):
            own_BO = both_GBO[each.row, : len(obs_B)]
            value_B = np.ascontiguousarray(own_BO[:, -1])
            each.answer = (own_BO[:, :-1], value_B, None) if is_recorded else value_B

    def _inputs(self, obs_GB: NumpyArray) -> Tensor:
        """Return observations of each policy as its network takes them, [G, B, ...]."""
        tensor = torch.from_numpy(obs_GB)
        return tensor if self._module is not None else as_floats(tensor).flatten(2)

    def _make_network(self, count: int) -> StackedActorCritics:
        if self._module is not None:
            names = [name for name, _ in self._module.named_parameters()]
            parameters = {n: self._weights[n.removeprefix(_OWN)][:count] for n in names}
            grads = [self._grads[n.removeprefix(_OWN)][:count] for n in names]
            return StackedOutputs(StackedModule(self._module, parameters, grads))
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


_OWN = "own."


class _Joined(nn.Module):
    """An actor-critic that returns its outputs and the values as one tensor, [B, D + 1]."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(self, obs: Tensor) -> Tensor:
        outputs_BD, value_B = self.own(obs)
        return torch.cat((outputs_BD, value_B.unsqueeze(-1)), dim=-1)


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
