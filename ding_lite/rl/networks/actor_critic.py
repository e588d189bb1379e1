"""Actor-critic networks.

For vectors they are two MLPs with a written-out backward; for images they share one torso of
convolutions, with autograd. On a device other than the CPU, and for a user's module, all use
autograd. A test compares both with plain PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.host_or_device import as_tensor
from ding_lite.rl.networks.layers import MLP, Members, names_of
from ding_lite.rl.networks.modules import ActorCriticModule, MemoryActorCriticModule
from ding_lite.rl.packing import as_floats, vectors
from ding_lite.rl.recorded.actor_critic import LOG_STD, RecordedActorCritic, RecurrentActorCritic
from ding_lite.rl.weights.flat import FlatWeights
from ding_lite.rl.weights.flat_module import FlatModule, Written


class MLPActorCritic(Written):
    """Two separate MLPs, for vectors; images are flattened.

    It computes an actor's outputs, [B, D], and values, [B], and the gradient of the weights.
    """

    def __init__(self, module: ActorCriticModule) -> None:
        super().__init__(module, last=LOG_STD)
        self.num_apart = num_apart_of(self.weights)
        """The number of weights, at the end, for which `backward` writes no gradients."""
        self._actor, self._critic = branches(module, self.weights, self.grads)

    @property
    def plain(self) -> nn.Module:
        return self.module

    def act(self, obs: NumpyArray) -> FloatArray:
        return self._actor.infer(vectors(as_floats(obs)))

    def values(self, obs: NumpyArray) -> FloatArray:
        return self._critic.infer(vectors(as_floats(obs)))[:, 0]

    def forward(
        self, obs: NumpyArray
    ) -> tuple[FloatArray, FloatArray, tuple[list[Tensor], list[Tensor]]]:
        vectors_BI = as_tensor(vectors(as_floats(obs)))
        of_actor, of_critic = self._actor.forward(vectors_BI), self._critic.forward(vectors_BI)
        value_B: FloatArray = of_critic[-1].numpy()[:, 0]
        return of_actor[-1].numpy(), value_B, (of_actor, of_critic)

    def backward(
        self,
        saved: tuple[list[Tensor], list[Tensor]],
        outputs_grad_BD: FloatArray,
        value_grad_B: FloatArray,
    ) -> None:
        of_actor, of_critic = saved
        self._actor.backward(of_actor, torch.from_numpy(outputs_grad_BD))
        self._critic.backward(of_critic, torch.from_numpy(value_grad_B[:, None]))


def branches(
    module: ActorCriticModule, weights: Members, grads: Members, *, first: int | None = None
) -> Iterator[MLP]:
    """Return actor and critic of a module for vectors, on weights of its own or of members."""
    how: Any = {"activation": module.activation, "first": first}
    for name, branch in (("actor", module.actor), ("critic", module.critic)):
        yield MLP(weights, grads, names_of(name, branch.depth), f"{name}.head", **how)


ActorCriticNetwork: TypeAlias = MLPActorCritic | RecordedActorCritic
"""Outputs, values and their gradients are arrays on a CPU, and tensors on any other device."""


def num_apart_of(weights: FlatWeights) -> int:
    """Return the number of standard deviations, which are no layer's."""
    return math.prod(weights.shapes.get(LOG_STD, (0,)))


def recorded_actor_critic(
    module: nn.Module,
    *,
    device: str | torch.device = "cpu",
    unpack: Callable[[Tensor], Any] | None = None,
) -> RecordedActorCritic:
    """Make the network of a module of this package, with autograd and with all weights zero."""
    flat = FlatModule(module.to_empty(device=device), device=device, last=LOG_STD)
    flat.weights.flat.zero_()
    num_apart = num_apart_of(flat.weights)
    if isinstance(module, MemoryActorCriticModule):
        flat.run = module.recur
        return RecurrentActorCritic(flat, unpack=unpack, num_apart=num_apart)
    return RecordedActorCritic(flat, unpack=unpack, num_apart=num_apart)


def draw_orthogonal(weights: FlatWeights, rng: np.random.Generator) -> None:
    """Initialise weights orthogonally (Saxe et al. 2014).

    The heads differ, as is usual (Huang et al. 2022, "The 37 implementation details of PPO"): the
    actor's is so small that all actions are about equally likely at first. Biases are 0.
    """
    gains = {"actor.head.weight": 0.01, "critic.head.weight": 1.0}
    for name, shape in weights.shapes.items():
        if name.endswith((".weight", ".weight_ih", ".weight_hh")):
            usual = math.sqrt(2.0) if name.endswith(".weight") else 1.0
            drawn = gains.get(name, usual) * _orthogonal(shape, rng)
            weights[name].copy_(torch.from_numpy(drawn.astype(np.float32)))


def _orthogonal(shape: tuple[int, ...], rng: np.random.Generator) -> NumpyArray:
    rows, columns = shape[0], math.prod(shape[1:])
    tall = rng.normal(size=(max(rows, columns), min(rows, columns)))
    # numpy's threads spin: with busy cores its decomposition takes up to 14 times as long.
    q, r = torch.linalg.qr(torch.from_numpy(tall))
    q *= torch.sign(torch.diagonal(r))  # otherwise the signs are not uniform
    drawn: NumpyArray = (q if rows >= columns else q.T).numpy().reshape(shape)
    return drawn
