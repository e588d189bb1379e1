"""The built-in networks for observations of several parts, some of which are images.

Each image goes through convolutions of its own; what they find and the other parts are joined into
one vector, which hidden layers follow. Gradients come from autograd. Without images the parts are
one vector from the beginning, and the networks are those of vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from ding_lite.rl.host_or_device import placed
from ding_lite.rl.networks.activations import Activation, activation_function
from ding_lite.rl.networks.conv import AnyTorso, Conv, num_features, torso_for
from ding_lite.rl.networks.inputs import RunningNorm, as_floats
from ding_lite.rl.networks.modules import Normalized, QModule
from ding_lite.rl.packing import Leaf, Packing, Tree
from ding_lite.rl.recorded.actor_critic import LOG_STD, RecordedActorCritic
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.weights.flat_module import FlatModule, acting, seeded


def encodes_images(spec: EnvSpec, torso: AnyTorso) -> bool:
    """Return whether images among several parts go through convolutions."""
    packing = spec.packing
    has_convs = torso not in ("mlp", ())
    return bool(packing and packing.has_images and not packing.is_one_leaf and has_convs)


def encoded_parts(spec: EnvSpec, torso: AnyTorso) -> Iterator[tuple[Leaf, tuple[Conv, ...], int]]:
    """Yield each part of observations, its convolutions, and how many numbers come out of it."""
    for leaf in leaves_of(spec):
        convs = torso_for(torso, leaf.shape, env_id=spec.env_id) if leaf.is_image else ()
        yield leaf, convs, num_features(leaf.shape, convs) if convs else leaf.size


class PartsEncoder(nn.Module):
    """Joins the parts of observations into one vector, images after their convolutions."""

    def __init__(self, spec: EnvSpec, torso: AnyTorso) -> None:
        super().__init__()
        self._leaves, convs, sizes = zip(*encoded_parts(spec, torso), strict=True)
        self.conv = nn.ModuleList(
            _convolutions(leaf.shape[0], layers)
            for leaf, layers in zip(self._leaves, convs, strict=True)
        )
        self.num_outputs = sum(sizes)
        """The length of the vector."""

    def forward(self, tree: Tree) -> Tensor:
        """Compute the vector, [B, I], of a tree of observations."""
        features = [
            layers(as_floats(leaf.find(tree))).flatten(1)
            for leaf, layers in zip(self._leaves, self.conv, strict=True)
        ]
        return torch.cat(features, dim=1)


class PartsQModule(QModule):
    """A value per action of observations of several parts.

    Args:
        hidden: The widths of the hidden layers; of a dueling network the last one is split in two.
    """

    def __init__(
        self,
        spec: EnvSpec,
        torso: AnyTorso,
        hidden: Sequence[int],
        *,
        num_actions: int,
        dueling: bool,
        activation: Activation,
    ) -> None:
        encoder = PartsEncoder(spec, torso)
        super().__init__(
            (encoder.num_outputs,),
            (),
            hidden,
            num_actions=num_actions,
            dueling=dueling,
            activation=activation,
        )
        self.encoder = encoder

    def forward(self, tree: Tree) -> Tensor:
        """Compute the values, [B, A], of a tree of observations."""
        return super().forward(self.encoder(tree))


class _Head(nn.Module):
    """The last layer of an actor or a critic, and further tensors beside it."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(num_inputs, num_outputs)


class PartsActorCriticModule(nn.Module):
    """Action parameters and values of observations of several parts, on shared hidden layers."""

    def __init__(
        self,
        spec: EnvSpec,
        torso: AnyTorso,
        hidden: Sequence[int],
        *,
        num_outputs: int,
        activation: Activation,
        more_shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        super().__init__()
        self.encoder = PartsEncoder(spec, torso)
        sizes = (self.encoder.num_outputs, *hidden)
        self.torso = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self._activation = activation_function(activation).recorded
        self.actor, self.critic = _Head(sizes[-1], num_outputs), _Head(sizes[-1], 1)
        for name, shape in more_shapes.items():
            self.actor.register_parameter(
                name.removeprefix("actor."), nn.Parameter(torch.zeros(shape))
            )

    def forward(self, tree: Tree) -> tuple[Tensor, Tensor]:
        """Compute the actor's outputs, [B, D], and the values, [B], of a tree of observations."""
        features_BI = self.encoder(tree)
        for layer in self.torso:
            features_BI = self._activation(layer(features_BI))
        return self.actor.head(features_BI), self.critic.head(features_BI).squeeze(1)


def make_parts_actor_critic(
    spec: EnvSpec,
    torso: AnyTorso,
    hidden: Sequence[int],
    *,
    num_outputs: int,
    activation: Activation,
    more_shapes: Mapping[str, tuple[int, ...]],
    device: torch.device,
) -> RecordedActorCritic:
    """Make the network of a `PartsActorCriticModule`, which takes packed observations."""
    with seeded(0, "unused"):
        module = PartsActorCriticModule(
            spec,
            torso,
            hidden,
            num_outputs=num_outputs,
            activation=activation,
            more_shapes=more_shapes,
        )
    num_apart = sum(math.prod(shape) for shape in more_shapes.values())
    flat = FlatModule(module, device=device, last=LOG_STD)
    flat.weights.flat.zero_()
    return RecordedActorCritic(flat, unpack=spec.unpack, num_apart=num_apart)


def for_inference(
    network: nn.Module, spec: EnvSpec, norm: RunningNorm | None, *, sees_trees: bool
) -> nn.Module:
    """Put before a network what a policy does with observations, as a plain module.

    Args:
        network: Gets vectors, images, or trees of parts.
        spec: The environments'.
        norm: The statistics by which observations are normalised, as they are now; None without.
        sees_trees: Whether it gets trees where observations have several parts.

    Returns:
        A module of observations as the environment gives them, without Dropout.
    """
    if norm is None and (sees_trees or spec.packing is None):
        return acting(network)
    if spec.packing is None:
        return acting(Normalized(network, cast(RunningNorm, norm)))
    return acting(FromTree(network, spec.packing, norm, sees_trees=sees_trees))


class FromTree(nn.Module):
    """A network behind a tree of observations, for inference.

    Args:
        norm: The statistics by which it is normalised, as they are now; None without.
    """

    def __init__(
        self,
        network: nn.Module,
        packing: Packing,
        norm: RunningNorm | None,
        *,
        sees_trees: bool = False,
    ) -> None:
        super().__init__()
        self.network = network
        self._unpack = packing.unpack if sees_trees else None
        self.shift: Tensor
        self.scale: Tensor
        self._leaves, self._is_one_leaf = packing.leaves, packing.is_one_leaf
        self._clip = None if norm is None else norm.clip
        if norm is not None:
            device = next(network.parameters()).device
            for name, found in (("shift", norm.shift_I), ("scale", norm.scale_I)):
                self.register_buffer(name, placed(found[: packing.num_inputs], device).clone())

    def forward(self, tree: Tree, state: Tensor | None = None) -> Any:  # noqa: ANN401 - what the network returns
        """Compute what the network computes; one with memory takes its states, too."""
        if self._is_one_leaf and self._clip is None:
            return self.network(tree) if state is None else self.network(tree, state)
        parts = [as_floats(leaf.find(tree)).flatten(1) for leaf in self._leaves]
        joined = torch.cat(parts, dim=1)
        if self._clip is not None:
            joined = (joined - self.shift) * self.scale
            joined = joined.clamp(-self._clip, self._clip)
        inputs: Any = joined if self._unpack is None else self._unpack(joined)
        return self.network(inputs) if state is None else self.network(inputs, state)


def leaves_of(spec: EnvSpec) -> tuple[Leaf, ...]:
    """Return the parts of packed observations."""
    return () if spec.packing is None else spec.packing.leaves


def _convolutions(in_channels: int, convs: Sequence[Conv]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for conv in convs:
        layers += [
            nn.Conv2d(in_channels, conv.channels, conv.kernel, conv.stride, conv.padding),
            nn.ReLU(),
        ]
        in_channels = conv.channels
    return nn.Sequential(*layers)
