"""Batched DDPG, TD3 and SAC policies of one architecture.

The formulas are those of the policies, with one more axis: G policies.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ding_lite.evolution.batched_policies import (
    Layout,
    Metrics,
    Stack,
    StackedNetwork,
    StackedTensors,
)
from ding_lite.rl.batch import NumpyArray, Transitions, to_numpy
from ding_lite.rl.formulas.returns import bootstrapped_targets
from ding_lite.rl.networks.box_actors import squash
from ding_lite.rl.policies.base import BoxActions
from ding_lite.rl.policies.box_policy import BoxPolicy
from ding_lite.rl.policies.ddpg import DDPG
from ding_lite.rl.policies.sac import SAC
from ding_lite.rl.policies.td3 import TD3

BoxT = TypeVar("BoxT", bound=BoxPolicy[Any, Any])


class BoxStack(Stack[BoxT]):
    """A stack of policies with an actor for box actions, and critics."""

    def __init__(self, like: BoxT, count: int) -> None:
        """Allocate memory."""
        super().__init__(like, count)
        self._box = BoxActions(self._spec, policy=type(like).__name__)
        depth = len(like.config.hidden)
        weights, _ = like.flat_weights
        self._num_critics = weights.shapes["critics.0.bias"][0]
        self._of_critics = [f"critics.{layer}" for layer in range(depth + 1)]
        self._of_actor = [*(f"actor.torso.{layer}" for layer in range(depth)), "actor.head"]
        self._critics = cache(partial(self._make_critics, self._weights))
        self._target_critics = cache(partial(self._make_critics, self._target))
        self._actor = cache(partial(self._make_actor, self._weights))

    @classmethod
    def key(cls, policy: BoxT) -> Hashable | None:
        """Return None for policies that share gradients with other nodes."""
        weights, _ = policy.flat_weights
        return None if policy.reduce_gradient else tuple(weights.shapes.items())

    def hold(self, policies: Sequence[BoxT]) -> Callable[[NumpyArray], NumpyArray]:
        """Copy the weights of some policies; return a function that acts as their actors do."""
        count = self._take(policies)
        actor, num_actions = self._actor(count), self._box.size

        def greedy(obs: NumpyArray) -> NumpyArray:
            vectors = self._vectors(obs.reshape(-1, *self._spec.obs_shape), len(obs))
            raw = actor.forward(vectors.expand(count, -1, -1))[-1][..., :num_actions]
            actions = self._box.from_unit(raw.tanh().flatten(0, 1).numpy())
            return actions.reshape(count, -1, *self._spec.action_shape)

        return greedy

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite is a fault instead
    def _update(self, layout: Layout[BoxT], batch: Transitions) -> None:
        """Do one update of the policies with updates left."""
        count = layout.count
        obs_GBI, next_obs_GBI = (self._vectors(o, count) for o in (batch.obs, batch.next_obs))
        action_BA = torch.from_numpy(self._box.to_unit(to_numpy(batch.action)))
        action_GBA = action_BA.view(count, -1, self._box.size)
        target_GB = bootstrapped_targets(
            layout.fold(batch.reward).astype(np.float32, copy=False),
            layout.fold(batch.terminated),
            layout.fold(batch.num_steps),
            self._next_values(layout, next_obs_GBI).numpy(),
            gamma=layout.gamma_G1,
        )
        q_EGB = []
        loss_G = np.zeros(count, dtype=np.float32)
        for critic in self._critics(count):
            outputs = critic.forward(torch.cat((obs_GBI, action_GBA), dim=2))
            q_EGB.append(outputs[-1].squeeze(2).numpy())
            error_GB = q_EGB[-1] - target_GB
            loss_G += layout.mean(error_GB * error_GB)
            grad_GB = layout.per_size(np.float32(2.0) * error_GB)
            critic.backward(outputs, torch.from_numpy(grad_GB).unsqueeze(2))

        for row, turn in layout.learning():
            if turn.passes(partial(turn.policy.check_loss, float(loss_G[row]), of="critics")):
                turn.policy.step_critics(self._grads.rows[row], self._weights.rows[row])
        of_actor = self._update_actors(layout, obs_GBI)
        for row, turn in layout.learning():
            turn.policy.train_iter += 1
            if turn.count():
                q_mean = float(np.mean([layout.mean(q_GB)[row] for q_GB in q_EGB]))
                metrics = {"loss": float(loss_G[row]), "q_mean": q_mean}
                turn.outcome.metrics = metrics | of_actor.get(row, {})
                turn.outcome.batch = layout.part(batch, row)

    def _update_actors(self, layout: Layout[BoxT], obs_GBI: Tensor) -> dict[int, Metrics]:
        """Do an update of the actors and targets that are due; return their metrics, by row."""
        due = [(row, turn) for row, turn in layout.learning() if turn.policy.actor_is_due]
        if not due:
            return {}
        found = self._actor_gradients(layout, obs_GBI)
        for row, turn in due:
            loss = found[row]["actor_loss"]
            if turn.passes(partial(turn.policy.check_loss, loss, of="actor")):
                turn.policy.step_actor(
                    self._grads.rows[row], self._weights.rows[row], self._target.rows[row]
                )
        return {row: found[row] for row, _ in due}

    @abstractmethod
    def _next_values(self, layout: Layout[BoxT], next_obs_GBI: Tensor) -> Tensor:
        """Estimate the return from the observations that transitions lead to, [G, B]."""

    @abstractmethod
    def _actor_gradients(self, layout: Layout[BoxT], obs_GBI: Tensor) -> list[Metrics]:
        """Write the actors' gradients; return their metrics, `actor_loss` among them."""

    def _noise(self, layout: Layout[BoxT]) -> Tensor:
        """Draw the noise of each policy's transitions by its own generator, [G, B, A]."""
        noise_GBA = np.zeros((layout.count, layout.largest, self._box.size), dtype=np.float32)
        for row, turn in layout.learning():
            if isinstance(turn.policy, TD3 | SAC):
                noise_GBA[row, : turn.size] = turn.policy.draw_noise(turn.size)
        return torch.from_numpy(noise_GBA)

    def _lowest(
        self, critics: Sequence[StackedNetwork], obs_GBI: Tensor, action_GBA: Tensor
    ) -> Tensor:
        """Return the lowest value that a critic gives, [G, B]."""
        x_GBI = torch.cat((obs_GBI, action_GBA), dim=2)
        return torch.stack([critic.forward(x_GBI)[-1] for critic in critics]).amin(0).squeeze(2)

    def _make_critics(self, weights: StackedTensors, first: int) -> list[StackedNetwork]:
        return [
            StackedNetwork(
                _OfCritic(weights, index),
                _OfCritic(self._grads, index),
                self._of_critics,
                first=first,
            )
            for index in range(self._num_critics)
        ]

    def _make_actor(self, weights: StackedTensors, first: int) -> StackedNetwork:
        return StackedNetwork(weights, self._grads, self._of_actor, first=first)


class ActorStack(BoxStack[DDPG]):
    """A stack of DDPG or TD3 policies of one architecture.

    Example:
        >>> from ding_lite.rl import DDPGConfig, make_envs
        >>> envs = make_envs("Pendulum-v1", 5)
        >>> policies = [DDPG(envs.spec, DDPGConfig(seed=seed)) for seed in range(3)]
        >>> ActorStack(policies[0], 3).hold(policies)(envs.obs[None]).shape
        (3, 5, 1)
    """

    def __init__(self, like: DDPG, count: int) -> None:
        """Allocate memory."""
        super().__init__(like, count)
        self._target_actor = cache(partial(self._make_actor, self._target))

    def _next_values(self, layout: Layout[DDPG], next_obs_GBI: Tensor) -> Tensor:
        action_GBA = self._target_actor(layout.count).forward(next_obs_GBI)[-1].tanh_()
        action_GBA.add_(self._noise(layout)).clamp_(-1.0, 1.0)
        return self._lowest(self._target_critics(layout.count), next_obs_GBI, action_GBA)

    def _actor_gradients(self, layout: Layout[DDPG], obs_GBI: Tensor) -> list[Metrics]:
        actor, [critic, *_] = self._actor(layout.count), self._critics(layout.count)
        outputs = actor.forward(obs_GBI)
        action_GBA = outputs[-1].tanh_()
        judged = critic.forward(torch.cat((obs_GBI, action_GBA), dim=2))
        q_GB = judged[-1].squeeze(2).numpy()
        grad_GB1 = torch.from_numpy(layout.per_size(np.full_like(q_GB, -1.0))).unsqueeze(2)
        grad_GBA = critic.backward_input(judged, grad_GB1, last=self._box.size)
        actor.backward(outputs, torch.ops.aten.tanh_backward(grad_GBA, action_GBA))
        return [{"actor_loss": -float(mean)} for mean in layout.mean(q_GB)]


class SACStack(BoxStack[SAC]):
    """A stack of SAC policies of one architecture."""

    def _next_values(self, layout: Layout[SAC], next_obs_GBI: Tensor) -> Tensor:
        raw = self._actor(layout.count).forward(next_obs_GBI)[-1]
        drawn = squash(raw, self._noise(layout))
        critics = self._target_critics(layout.count)
        q_GB = self._lowest(critics, next_obs_GBI, drawn.action_BA)
        return q_GB - self._alpha(layout) * drawn.log_prob_B

    def _actor_gradients(self, layout: Layout[SAC], obs_GBI: Tensor) -> list[Metrics]:
        actor, critics = self._actor(layout.count), self._critics(layout.count)
        alpha_G1 = self._alpha(layout)
        outputs = actor.forward(obs_GBI)
        drawn = squash(outputs[-1], self._noise(layout))
        x_GBI = torch.cat((obs_GBI, drawn.action_BA), dim=2)
        judged = [critic.forward(x_GBI) for critic in critics]
        lowest_GB1, which_GB1 = torch.stack([outputs[-1] for outputs in judged]).min(0)
        entropy_G = -layout.mean(drawn.log_prob_B.numpy())
        loss_G = -alpha_G1[:, 0].numpy() * entropy_G - layout.mean(lowest_GB1.squeeze(2).numpy())

        each_GB1 = torch.from_numpy(layout.per_size(np.ones_like(layout.fold(lowest_GB1))))
        each_GB1 = each_GB1.unsqueeze(2)
        grad_GBA = torch.zeros_like(drawn.action_BA)
        for index, (critic, saved) in enumerate(zip(critics, judged, strict=True)):
            grad_GB1 = -each_GB1 * (which_GB1 == index)
            grad_GBA += critic.backward_input(saved, grad_GB1, last=self._box.size)
        log_prob_grad = alpha_G1.unsqueeze(2) * each_GB1
        actor.backward(outputs, drawn.backward(grad_GBA, log_prob_grad=log_prob_grad))
        for row, turn in layout.learning():
            policy, too_random = turn.policy, float(entropy_G[row]) - turn.policy.target_entropy
            slope = float(alpha_G1[row]) * too_random if policy.config.learn_alpha else 0.0
            self._grads["log_alpha"][row].fill_(slope)
        return [
            {"actor_loss": float(loss), "alpha": float(alpha), "entropy": float(entropy)}
            for loss, alpha, entropy in zip(loss_G, alpha_G1, entropy_G, strict=True)
        ]

    def _alpha(self, layout: Layout[SAC]) -> Tensor:
        """Return the temperatures, [G, 1]."""
        return self._weights["log_alpha"][: layout.count].exp()


class _OfCritic:
    """The tensors of one critic of each policy."""

    def __init__(self, rows: StackedTensors, index: int) -> None:
        self._rows, self._index = rows, index

    def __getitem__(self, name: str, /) -> Tensor:
        return self._rows[name][:, self._index]
