"""The settings that A2C, PPO and IMPALA share, and the network that they describe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from ding_lite.rl.formulas.distributions import (
    Distribution,
    Gaussian,
    StateGaussian,
    make_distribution,
    num_outputs,
)
from ding_lite.rl.networks.activations import Activation
from ding_lite.rl.networks.actor_critic import (
    ActorCriticNetwork,
    MLPActorCritic,
    draw_orthogonal,
    recorded_actor_critic,
)
from ding_lite.rl.networks.modules import (
    ActorCriticModule,
    Inputs,
    MemoryActorCriticModule,
    MemoryKind,
    Torso,
    without_numbers,
)
from ding_lite.rl.networks.parts import inputs_of
from ding_lite.rl.policies.base.config import PolicyConfig, StepConfig
from ding_lite.rl.recorded.actor_critic import log_std_name, make_own_actor_critic
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.flat_module import MakeModule
from ding_lite.settings.rules import COUNT, NOT_NEGATIVE, choice, finite, inside, setting


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(PolicyConfig, StepConfig):
    """The settings that A2C, PPO and IMPALA share."""

    lr_updates: int = 10_000
    """The number of updates in which the learning rate falls; usually all updates of the run."""
    hidden: tuple[int, ...] = (64, 64)
    """The widths of the hidden layers. Wider layers can learn more and take longer. For vectors,
    actor and critic have separate layers; for images they share the layers and the convolutions."""
    activation: Activation = "tanh"
    """The activation of hidden layers: `tanh` is more stable, `relu` faster, and `gelu`, `elu` and
    `silu` are smooth."""
    image_activation: Activation = setting("relu", choice(Activation))
    """The activation of the hidden layers after the convolutions of an image, instead of
    `activation`. Layers after several parts of an observation use `activation`."""
    value_coef: float = setting(0.5, NOT_NEGATIVE, finite)
    """The weight of the critic's loss. It matters if actor and critic share layers, and for
    `max_grad_norm`; 0.25 to 1 are usual."""
    entropy_coef: float = setting(0.0, NOT_NEGATIVE, finite)
    """The weight of the entropy bonus. Higher explores longer; 0 to 0.02 are usual."""
    memory: MemoryKind | None = setting(None, choice(MemoryKind))
    """A recurrent layer after the hidden layers, for observations that do not show the whole state:
    an `lstm`, or a `gru`, which takes less time. Actor and critic have one each."""
    memory_size: int = setting(64, COUNT)
    """The width of each recurrent layer; 32 to 256 are usual."""
    max_grad_norm: float | None = 0.5
    """The norm to which a larger gradient is clipped; None does not clip."""
    log_std_start: float = setting(0.0, partial(inside, -20.0, 5.0))
    """For continuous actions: the logarithm of the initial standard deviation, in units of half
    the range of the action space. -1 to 0 are usual."""


def make_network(
    spec: EnvSpec,
    config: ActorCriticConfig,
    own: Mapping[str, MakeModule | None],
    *,
    rng: np.random.Generator,
    random: TorchRandom,
    device: torch.device,
) -> tuple[ActorCriticNetwork, Distribution]:
    space = spec.action_space
    num_means = math.prod(space.shape) if isinstance(space, Box) else 0
    net: ActorCriticNetwork
    if any(make is not None for make in own.values()):
        net, has_spread = make_own_actor_critic(
            own,
            spec,
            num_outputs=num_outputs(spec),
            num_means=num_means,
            seed=config.seed,
            random=random,
            device=device,
        )
        if isinstance(space, Box) and has_spread:
            return net, StateGaussian(space, device=device)
    else:
        net = _make_described(spec, config, num_means=num_means, device=device)
        draw_orthogonal(net.weights, rng)
    if not isinstance(space, Box):
        return net, make_distribution(spec)
    name = log_std_name(net)
    net.weights[name].fill_(config.log_std_start)
    return net, Gaussian(space, net.weights[name], net.grads[name])


@lru_cache
def _mlps(inputs: Inputs, hidden: tuple[int, ...], **how: Any) -> ActorCriticModule:  # noqa: ANN401
    """Make a module, cached, as it takes longer to make than the weights of a network."""
    return ActorCriticModule(inputs, hidden, **how)


def _make_described(
    spec: EnvSpec, config: ActorCriticConfig, *, num_means: int, device: torch.device
) -> ActorCriticNetwork:
    hidden = config.hidden
    how: dict[str, Any] = {"num_outputs": num_outputs(spec), "num_means": num_means}
    module: ActorCriticModule | MemoryActorCriticModule
    with without_numbers():  # the weights are drawn afterwards
        inputs = inputs_of(spec, config.images)
        first = config.image_activation if inputs.convs else config.activation
        if config.memory is None:
            if inputs.are_plain and device.type == "cpu":
                return MLPActorCritic(_mlps(inputs, hidden, activation=first, **how))
            module = ActorCriticModule(inputs, hidden, activation=first, **how)
        else:
            module = MemoryActorCriticModule(
                inputs.encoder or Torso(inputs, hidden if inputs.convs else (), activation=first),
                hidden[-1:] if inputs.convs else (math.prod(inputs.shape), *hidden),
                activation=config.activation,
                memory=config.memory,
                memory_size=config.memory_size,
                **how,
            )
    unpack = None if inputs.encoder is None else spec.unpack
    return recorded_actor_critic(module, device=device, unpack=unpack)
