"""The parameter layout of each kind of policy: networks, targets and optimisers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ding_lite.errors import ConfigError
from ding_lite.evolution.growth.layers import Chain, PolicyTensors, Tensors
from ding_lite.rl.networks.activations import Activation
from ding_lite.rl.networks.conv import Conv, torso_for
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy
from ding_lite.rl.policies.box_policy import BoxPolicy
from ding_lite.rl.policies.dqn import DQN
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec


@dataclass(frozen=True)
class _Adam:
    """The key of an optimiser's state, and the weights that it steps."""

    key: str
    prefixes: tuple[str, ...] = ("",)
    """The prefixes of their names."""


@dataclass(frozen=True)
class ParameterLayout:
    """The keys of weights, target weights and optimisers in a policy's `state_dict`."""

    values: tuple[str, ...]
    """The keys of the weights, then of the target weights."""
    adams: tuple[_Adam, ...]
    chains: Callable[[int], tuple[Chain, ...]]
    """The chains of a policy with so many hidden layers."""
    activation: Activation
    """The activation of the hidden layers."""
    convs: tuple[Conv, ...] = ()
    """The convolutions before them."""

    def open(self, state: Mapping[str, Any]) -> PolicyTensors:
        """Return the tensors of a state."""
        values = [_own(state[key]) for key in self.values]
        moments = []
        for adam in self.adams:
            names = _names_of(adam, values[0])
            sizes = [values[0][name].numel() for name in names]
            parts = []
            for kind in ("mean", "square"):
                split = state[adam.key][kind].split(sizes)
                pairs = zip(names, split, strict=True)
                parts.append({name: part.view_as(values[0][name]) for name, part in pairs})
            moments.append((parts[0], parts[1]))
        return PolicyTensors(values, moments)

    def close(
        self, tensors: PolicyTensors, state: Mapping[str, Any], like: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a state with these tensors.

        Args:
            tensors: The tensors.
            state: The state that they are from.
            like: The state of a policy of their new architecture.
        """
        closed = dict(state)
        for key in state:  # those of users start anew where tensors have other shapes
            if key.endswith("optimizer"):
                closed[key] = like[key]
        for key, values in zip(self.values, tensors.values, strict=True):
            closed[key] = {**values, **_norm(state[key])}
        order = list(_own(like[self.values[0]]))
        for adam, (means, squares) in zip(self.adams, tensors.moments, strict=True):
            names = [name for name in order if name in means]
            closed[adam.key] = {
                **state[adam.key],
                "mean": torch.cat([means[name].reshape(-1) for name in names]),
                "square": torch.cat([squares[name].reshape(-1) for name in names]),
            }
        return closed


def layout_of(policy: Policy) -> ParameterLayout:
    """Return the parameter layout of a policy.

    Raises:
        ConfigError: The layout of its class is unknown.
    """
    config: Any = policy.config
    if isinstance(policy, DQN):
        heads = ("head.value", "head.advantage") if config.dueling else ("head",)
        return ParameterLayout(
            values=("q_net", "target_net"),
            adams=() if policy.has_own_optimizer else (_Adam("adam"),),
            chains=lambda depth: (Chain(_numbered("torso", depth), heads, config.dueling),),
            activation=config.activation,
            convs=convs_of(policy.spec, config),
        )
    if isinstance(policy, BoxPolicy):
        if policy.spec.is_image:
            raise ConfigError(
                f"This {type(policy).__name__} sees images, and evolution does not change its "
                f"networks for them. Mutate its settings only: `Mutation(search, architecture=0.0, "
                f"weights=0.0, activation=0.0)`."
            )
        adams = _Adam("critic_adam", ("critics.",)), _Adam("actor_adam", ("actor.", "log_"))
        return ParameterLayout(
            values=("weights", "target"),
            adams=() if policy.has_own_optimizer else adams,
            chains=lambda depth: (
                Chain(_numbered("critics", depth), (f"critics.{depth}",)),
                Chain(_numbered("actor.torso", depth), ("actor.head",)),
            ),
            activation=config.activation,
        )
    if isinstance(policy, ActorCriticPolicy):
        if policy.state_size:
            raise ConfigError(
                f"This {type(policy).__name__} has memory, and evolution does not change networks "
                f"with memory. Mutate its settings only: `Mutation(search, architecture=0.0, "
                f"weights=0.0, activation=0.0)`."
            )
        heads = ("actor.head", "critic.head")
        shared = "torso.0.weight" in policy.weights()
        return ParameterLayout(
            values=("network",),
            adams=(_Adam("adam"),),
            chains=lambda depth: (
                (Chain(_numbered("torso", depth), heads),)
                if shared
                else tuple(
                    Chain(_numbered(name, depth), (f"{name}.head",)) for name in ("actor", "critic")
                )
            ),
            activation="relu" if shared and policy.spec.is_image else config.activation,
            convs=convs_of(policy.spec, config) if shared else (),
        )
    raise ConfigError(
        f"The networks of a {type(policy).__name__} cannot be mutated: evolution knows those of "
        f"DQN, DDPG, TD3, SAC, A2C, PPO and IMPALA. Mutate its settings only: "
        f"`Mutation(search, architecture=0.0, weights=0.0)`."
    )


def convs_of(spec: EnvSpec, config: Any) -> tuple[Conv, ...]:  # noqa: ANN401 - of any policy
    """Return the convolutions of networks of these settings."""
    if spec.packing is not None:
        return ()  # each part of an observation has some of its own
    return torso_for(config.torso, spec.input_shape, env_id=spec.env_id, convs=config.convs)


def _own(tensors: Mapping[str, Tensor]) -> Tensors:
    """Drop tensors that no optimiser changes: the running means of `normalize_obs`."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("norm.")}


def _norm(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name.startswith("norm.")}


def _names_of(adam: _Adam, values: Mapping[str, Tensor]) -> list[str]:
    return [name for name in values if name.startswith(adam.prefixes)]


def _numbered(name: str, depth: int) -> tuple[str, ...]:
    return tuple(f"{name}.{layer}" for layer in range(depth))
