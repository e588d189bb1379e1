"""The parameter layout of each kind of policy: networks, targets and optimisers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ding_lite.errors import ConfigError, kind_of
from ding_lite.evolution.growth.convolutions import ConvChain, Convs
from ding_lite.evolution.growth.layers import (
    Chain,
    PolicyTensors,
    Recurrent,
    carried_counts,
    join_moments,
    split_moments,
)
from ding_lite.rl.networks.activations import Activation
from ding_lite.rl.networks.conv import num_features, torso_for
from ding_lite.rl.networks.parts import encoded_parts, encodes_images
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy
from ding_lite.rl.policies.base.open_policy import OpenPolicy
from ding_lite.rl.policies.box_policy import BoxPolicy
from ding_lite.rl.policies.dqn import DQN
from ding_lite.rl.protocols import Policy
from ding_lite.rl.torch_policies.r2d2 import R2D2

_ADAM = (("adam", ("",)),)
_NO_CONVS: tuple[Convs, tuple[ConvChain, ...]] = ((), ())


@dataclass(frozen=True)
class ParameterLayout:
    """The places of weights, target weights and optimisers in a policy's `state_dict`."""

    values: tuple[tuple[str, ...], ...]
    """The keys that lead to the weights, then to the target weights."""
    adams: tuple[tuple[str, tuple[str, ...]], ...]
    """The key of each optimiser, and the name prefixes of the weights that it updates."""
    chains: Callable[[int], tuple[Chain, ...]]
    """Returns the chains of a policy with a given number of hidden layers."""
    activation: Activation
    """The activation of the hidden layers."""
    activation_name: str = "activation"
    """The name of the setting of this activation."""
    num_fixed: int = 0
    """The number of first hidden layers that stay, without a new layer behind them."""
    images: tuple[Convs, tuple[ConvChain, ...]] = _NO_CONVS
    """The convolutions before the hidden layers, and their names for each image."""
    memories: tuple[Recurrent, ...] = ()
    """The recurrent layers of width `memory_size`, which an architecture mutation changes."""

    def open(self, state: Mapping[str, Any]) -> PolicyTensors:
        values = [
            {_plain(name): t for name, t in _at(state, keys).items() if name[:5] != "norm."}
            for keys in self.values
        ]
        shapes = {name: tensor.shape for name, tensor in values[0].items()}
        moments = [
            split_moments(state[key], {n: s for n, s in shapes.items() if n.startswith(prefixes)})
            for key, prefixes in self.adams
        ]
        return PolicyTensors(values, moments)

    def close(
        self, tensors: PolicyTensors, state: Mapping[str, Any], like: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a state with these tensors in place of its own."""
        # A user's optimisers start anew, as tensors have other shapes.
        closed = {k: like[k] if k.endswith("optimizer") else each for k, each in state.items()}
        for (key, *inner), values in zip(self.values, tensors.values, strict=True):
            old, new = _at(state, (key, *inner)), _at(like, (key, *inner))
            found: Any = {n: values[_plain(n)] if _plain(n) in values else old[n] for n in new}
            for part in reversed(inner):
                found = {**closed[key], part: found}
            closed[key] = found
        before, order = ([*map(_plain, _at(of, self.values[0]))] for of in (state, like))
        for (key, prefixes), named in zip(self.adams, tensors.moments, strict=True):
            learned = [n for n in before if n.startswith(prefixes) and n[:5] != "norm."]
            counts = carried_counts(state[key], learned, [n for n in order if n in named[0]])
            closed[key] = {**join_moments(named, order), "num_updates": counts}
        return closed


def layout_of(policy: Policy) -> ParameterLayout:
    config: Any = policy.config
    if isinstance(policy, DQN):
        heads = ("head.value", "head.advantage") if config.dueling else ("head",)
        return ParameterLayout(
            values=(("q_net",), ("target_net",)),
            adams=() if policy.has_own_optimizer else _ADAM,
            chains=lambda depth: (Chain(_numbered("torso", depth), heads, config.dueling),),
            activation=config.activation,
            images=_images_of(policy),
        )
    if isinstance(policy, R2D2):
        return ParameterLayout(
            values=(("weights",), ("targets", "0")),
            adams=() if policy.has_own_optimizer else _ADAM,
            chains=lambda depth: (Chain(_numbered("torso.torso", depth), ("memory",)),),
            activation=config.activation,
            images=_images_of(policy, "torso."),
            memories=(Recurrent("memory", "head", is_stored=True),),
        )
    if isinstance(policy, BoxPolicy):
        return _layout_of_box(policy)
    if isinstance(policy, ActorCriticPolicy):
        return _layout_of_actor_critic(policy)
    raise ConfigError(
        f"The networks of {kind_of(policy)} cannot be mutated: evolution knows those of "
        f"DQN, R2D2, DDPG, TD3, SAC, A2C, PPO and IMPALA. Mutate its settings only: "
        f"`Mutation(search, architecture=0.0, weights=0.0)`."
    )


def _layout_of_actor_critic(policy: ActorCriticPolicy[Any]) -> ParameterLayout:
    config, spec = policy.config, policy.spec
    encoder, torso, reader = ("encoder.", ".torso", "memory") if config.memory else ("", "", "head")
    both = ("actor", "critic")
    shared = f"{encoder}torso.0.weight" in policy.weights()
    name = "image_activation" if shared and spec.is_image else "activation"
    # With memory, actor and critic read the convolutions of several parts separately.
    is_read_twice = bool(config.memory) and encodes_images(spec, config.images)
    return ParameterLayout(
        values=(("network",),),
        adams=() if policy.has_own_optimizer else _ADAM,
        chains=lambda depth: (
            (Chain(_numbered(f"{encoder}torso", depth), tuple(f"{b}.{reader}" for b in both)),)
            if shared
            else tuple(Chain(_numbered(b + torso, depth), (f"{b}.{reader}",)) for b in both)
        ),
        activation=getattr(config, name),
        activation_name=name,
        images=_NO_CONVS if is_read_twice else _images_of(policy, encoder),
        memories=tuple(Recurrent(f"{b}.memory", f"{b}.head") for b in both if config.memory),
    )


def _layout_of_box(policy: BoxPolicy[Any, Any]) -> ParameterLayout:
    adams = ("critic_adam", ("critics.",)), ("actor_adam", ("actor.", "log_"))
    shared, config = "critics.0.encoder.torso.0", policy.config
    sees_images = f"{shared}.weight" in policy.flat_weights[0].shapes
    each = [f"critics.0.critics.{k}" for k in range(policy.form.num_critics)]
    trunk = Chain((shared,), tuple(f"{critic}.0" for critic in each))

    def of_critics(depth: int) -> tuple[Chain, ...]:
        if not sees_images:
            return (Chain(_numbered("critics", depth), (f"critics.{depth}",)),)
        behind = max(1, depth - 1)  # a single width is that of both
        return trunk, *(
            Chain(_numbered(critic, behind), (f"{critic}.head",), first=min(1, depth - 1))
            for critic in each
        )

    convs, of_actor = _images_of(policy, "actor.")
    return ParameterLayout(
        values=(("weights",), ("target",)),
        adams=() if policy.has_own_optimizer else adams,
        chains=lambda depth: (
            *of_critics(depth),
            Chain(_numbered("actor.torso", depth), ("actor.head",)),
        ),
        activation=config.activation,
        num_fixed=int(sees_images),
        images=(convs, (*of_actor, *_images_of(policy, "critics.0.encoder.")[1])),
    )


def convs_of(policy: Policy) -> Convs:
    if isinstance(policy, OpenPolicy) and hasattr(policy.config, "images"):
        return _images_of(policy)[0]
    return ()


def _images_of(policy: OpenPolicy, prefix: str = "") -> tuple[Convs, tuple[ConvChain, ...]]:
    """Return convolutions and their places; none if the images have different convolutions."""
    spec, torso = policy.spec, policy.config.images
    reader = f"{prefix}torso.0"
    if not encodes_images(spec, torso):
        convs = torso_for(torso, spec.input_shape, env_id=spec.env_id)
        if not convs:
            return _NO_CONVS
        pixels = num_features(spec.input_shape, convs) // convs[-1].channels
        return convs, (ConvChain(f"{prefix}conv", reader, pixels),)
    start, chains, found = 0, [], set()
    for index, (leaf, convs, size) in enumerate(encoded_parts(spec, torso)):
        if leaf.is_image:
            found.add(convs)
            pixels = size // convs[-1].channels if convs else 0
            chains.append(ConvChain(f"{prefix}encoder.conv.{index}", reader, pixels, start, step=2))
        start += size
    return (found.pop(), tuple(chains)) if len(found) == 1 else _NO_CONVS


def _at(state: Mapping[str, Any], keys: tuple[str, ...]) -> Mapping[str, Tensor]:
    for key in keys:
        state = state[key]
    return state


def _plain(name: str) -> str:
    """Return a tensor's name without the prefix and suffixes of R2D2 and of recurrent layers."""
    return name.removeprefix("net.").removesuffix("_l0").removesuffix("_ih")


def _numbered(name: str, depth: int) -> tuple[str, ...]:
    return tuple(f"{name}.{layer}" for layer in range(depth))
