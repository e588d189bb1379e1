"""Batched DDPG, TD3 and SAC policies of one architecture."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.evolution.batched.base import Layout, ReplayStack, StackedTensors, layers_of, obs_of
from ding_lite.evolution.batched.modules import StackedModule, stackable
from ding_lite.rl.batch import NumpyArray, Transitions, to_numpy
from ding_lite.rl.networks.action_values import Critics, CriticsOfMembers
from ding_lite.rl.networks.box_actors import BoxActor, OwnActor
from ding_lite.rl.networks.box_networks import Networks
from ding_lite.rl.networks.layers import MLP, Members, MLPOutputs, Viewed, names_of
from ding_lite.rl.policies.base.spaces import BoxActions
from ding_lite.rl.policies.box_policy import BoxPolicy, update_critics
from ding_lite.rl.recorded.box import CriticList

BoxT = TypeVar("BoxT", bound=BoxPolicy[Any, Any])


class BoxStack(ReplayStack[BoxT]):
    """A stack of DDPG, TD3 or SAC policies of one architecture, or with modules of users of one.

    Example:
        >>> from ding_lite.rl import DDPG, DDPGConfig, make_envs
        >>> envs = make_envs("Pendulum-v1", 5)
        >>> policies = [DDPG(envs.spec, DDPGConfig(seed=seed)) for seed in range(3)]
        >>> BoxStack(policies[0], 3).hold(policies)(envs.obs[None]).shape
        (3, 5, 1)
    """

    def __init__(self, like: BoxT, count: int) -> None:
        super().__init__(like, count, _modules_of(like) if like.has_own_network else None)
        self._box = BoxActions(self._spec, policy=type(like).__name__)
        self._networks = cache(self._make_networks)

    @classmethod
    def key(cls, policy: BoxT) -> Hashable | None:
        """Return the key of policies that are computed together; None for others, as of images."""
        parts = {"actor", "critic"} & policy.parts.keys()
        if len(parts) == 2:
            obs, action = obs_of(policy), ((int(np.prod(policy.spec.action_shape)),), np.float32)
            both = _modules_of(policy)
            return stackable(both, (both["actor"], obs), (both["critics"], obs, action))
        return None if policy.spec.is_image or parts else layers_of(policy)

    def _greedy(self, policies: Sequence[BoxT], inputs_GNI: Tensor) -> NumpyArray:
        unit_GNA = self._networks(len(policies)).actor.act(inputs_GNI.numpy())
        actions = self._box.from_unit(unit_GNA.reshape(-1, self._box.size))
        return actions.reshape(len(policies), -1, *self._spec.action_shape)

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite is a fault instead
    def _update(self, layout: Layout[BoxT], batch: Transitions) -> None:
        networks, count = self._networks(layout.count), layout.count
        policies, noise_KGBA = [turn.policy for turn in layout.turns], self._noise(layout)
        obs_GBI, next_obs_GBI = self._observations(layout, batch)
        action_BA = torch.from_numpy(self._box.to_unit(to_numpy(batch.action)))
        values, _ = update_critics(
            networks.critics,
            layout,
            batch,
            obs_GBI,
            action_BA.view(count, -1, self._box.size),
            self._like.next_values(policies, networks, next_obs_GBI, noise_KGBA),
        )
        for row, turn in layout.learning():
            parts = self._grads.rows[row], self._weights.rows[row]
            turn.passes(partial(turn.policy.step_critics, float(values["loss"][row]), *parts))
        is_due = {row: turn.policy.actor_is_due for row, turn in layout.learning()}
        of_actor = {}
        if any(is_due.values()):
            of_actor = self._like.improve_actors(policies, networks, layout, obs_GBI, noise_KGBA)
        for row, turn in layout.learning():
            if is_due[row]:
                rows = [each.rows[row] for each in (self._grads, self._weights, self._target)]
                loss = float(of_actor["actor_loss"][row])
                if not turn.passes(partial(turn.policy.step_actor, loss, *rows)):
                    continue
            turn.policy.train_iter += 1
            if turn.count():
                own = values | of_actor if is_due[row] else values
                turn.outcome.metrics = {name: float(each_G[row]) for name, each_G in own.items()}
                turn.outcome.batch = layout.part(batch, row)

    def _noise(self, layout: Layout[BoxT]) -> Tensor:
        """Draw the noise of each policy's transitions by its own generator, [K, G, B, A]."""
        num_draws = len(self._like.draw_noise(0))
        shape = num_draws, layout.count, layout.largest, self._box.size
        noise_KGBA = np.zeros(shape, dtype=np.float32)
        for row, turn in layout.learning():
            noise_KGBA[:, row, : turn.size] = turn.policy.draw_noise(turn.size)
        return torch.from_numpy(noise_KGBA)

    def _make_networks(self, count: int) -> Networks[Any]:
        form = self._like.form
        target = self._target if form.has_target_actor else self._weights
        return Networks(
            actor=self._actor_on(self._weights, count),
            target_actor=self._actor_on(target, count),
            critics=self._critics_on(self._weights, count),
            followed=self._critics_on(self._weights, count, first=form.num_followed),
            target_critics=self._critics_on(self._target, count),
            of_members=Viewed(self._weights, lambda t: t[:count]),
            grads_of_members=Viewed(self._grads, lambda t: t[:count]),
        )

    def _actor_on(self, weights: StackedTensors, count: int) -> BoxActor:
        actor_type: Callable[..., BoxActor] = self._like.form.actor_type
        if self._module is not None:
            body: Any = self._stacked("actor", weights, count)  # it never acts
            is_gaussian = self._like.form.actor_type.outputs_per_action > 1
            return actor_type(body) if is_gaussian else OwnActor(body, self._spec)
        names = names_of("actor.torso", len(self._like.config.hidden))
        layers = self._layers(weights, self._grads, names, "actor.head", count)
        return actor_type(MLPOutputs(layers))

    def _critics_on(
        self, weights: StackedTensors, count: int, *, first: int | None = None
    ) -> Critics:
        if self._module is not None:
            return self._stacked("critics", weights, count, first, axis=1)
        *names, head = names_of("critics", len(self._like.config.hidden) + 1)
        networks = [
            self._layers(_of_critic(weights, k), _of_critic(self._grads, k), names, head, count)
            for k in range(self._like.form.num_critics)[:first]
        ]
        return CriticsOfMembers(networks, num_actions=self._box.size)

    def _stacked(
        self, part: str, weights: StackedTensors, count: int, *more: object, axis: int = 0
    ) -> StackedModule:
        return StackedModule(
            self._module[part],
            weights,
            self._grads,
            count,
            rename=lambda name: f"{part}.{name}",
            more=more,
            axis=axis,
        )

    def _layers(
        self, weights: Members, grads: Members, names: Sequence[str], head: str, count: int
    ) -> MLP:
        activation = self._like.config.activation
        return MLP(weights, grads, names, head, activation=activation, first=count)


def _of_critic(rows: StackedTensors, index: int) -> Members:
    return Viewed(rows, lambda tensor: tensor[:, index])


def _modules_of(policy: Any) -> nn.ModuleDict:  # noqa: ANN401 - of any box policy
    """Return the actor and the critics, by the first part of the names of their weights."""
    own = policy.own_modules["weights"]
    critics = [module for prefix, module in own.items() if prefix != "actor."]
    return nn.ModuleDict({"critics": CriticList(critics), "actor": own["actor."]})
