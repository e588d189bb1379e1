"""The built-in networks for observations of several parts, some of which are images.

Each image passes through its own convolutions. Their outputs and the other parts are joined into
one vector, followed by hidden layers. Gradients come from autograd. Without images the parts are
joined at once, and the networks are those of vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.rl.host_or_device import placed
from ding_lite.rl.networks.conv import AnyTorso, Conv, num_features, torso_for
from ding_lite.rl.networks.inputs import RunningNorm, normed
from ding_lite.rl.networks.modules import Inputs, make_convolutions
from ding_lite.rl.networks.precision import convolved
from ding_lite.rl.packing import Leaf, Packing, Tree, as_floats
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.weights.flat_module import acting


def encodes_images(spec: EnvSpec, torso: AnyTorso) -> bool:
    packing = spec.packing
    has_convs = torso not in ("mlp", ())
    return bool(packing and packing.has_images and not packing.is_one_leaf and has_convs)


def encoded_parts(spec: EnvSpec, torso: AnyTorso) -> Iterator[tuple[Leaf, tuple[Conv, ...], int]]:
    """Yield each part of observations, its convolutions, and the number of its features."""
    for leaf in () if spec.packing is None else spec.packing.leaves:
        convs = torso_for(torso, leaf.shape, env_id=spec.env_id) if leaf.is_image else ()
        yield leaf, convs, num_features(leaf.shape, convs) if convs else leaf.size


class PartsEncoder(nn.Module):
    """Joins the parts of observations into one vector, images after their convolutions."""

    def __init__(self, spec: EnvSpec, torso: AnyTorso) -> None:
        super().__init__()
        self._leaves, convs, sizes = zip(*encoded_parts(spec, torso), strict=True)
        self.conv = nn.ModuleList(
            nn.Sequential(
                *(
                    each
                    for conv in make_convolutions(leaf.shape[0], layers)
                    for each in (conv, nn.ReLU())
                )
            )
            for leaf, layers in zip(self._leaves, convs, strict=True)
        )
        self.num_outputs = sum(sizes)

    def forward(self, tree: Tree) -> Tensor:
        features = []
        for leaf, layers in zip(self._leaves, self.conv, strict=True):
            part = leaf.find(tree)
            features.append(
                convolved(layers, part) if leaf.is_image else as_floats(part).flatten(1)
            )
        return torch.cat(features, dim=1)


def inputs_of(spec: EnvSpec, torso: AnyTorso) -> Inputs:
    if encodes_images(spec, torso):
        encoder = PartsEncoder(spec, torso)
        return Inputs((encoder.num_outputs,), encoder=encoder)
    shape = tuple(spec.input_shape)
    return Inputs(shape, torso_for(torso, shape, env_id=spec.env_id))


def for_inference(
    network: nn.Module, spec: EnvSpec, norm: RunningNorm | None, *, sees_trees: bool
) -> nn.Module:
    """Return a network with the policy's preprocessing, as a module in evaluation mode."""
    if norm is None and (sees_trees or spec.packing is None):
        return acting(network)
    return acting(Preprocessed(network, spec.packing, norm, sees_trees=sees_trees))


class Preprocessed(nn.Module):
    """A network that joins the parts of observations, and normalises them by its statistics."""

    def __init__(
        self,
        network: nn.Module,
        packing: Packing | None,
        norm: RunningNorm | None,
        *,
        sees_trees: bool,
    ) -> None:
        super().__init__()
        self.network = network
        is_one_leaf = packing is not None and packing.is_one_leaf and norm is None
        self._leaves = () if packing is None or is_one_leaf else packing.leaves
        self._unpack = None if packing is None or not sees_trees else packing.unpack
        self.clip = None if norm is None else norm.clip
        self.shift: Tensor
        self.scale: Tensor
        if norm is not None:
            device = next(network.parameters()).device
            size = None if packing is None else packing.num_inputs
            for name, found in (("shift", norm.shift_I), ("scale", norm.scale_I)):
                self.register_buffer(name, placed(found[:size], device).clone())

    def forward(self, obs: Any, *state: Tensor) -> Any:  # noqa: ANN401 - of the network
        """Compute the network's outputs; a network with memory also takes its states."""
        if self._leaves:
            parts = [as_floats(leaf.find(obs)).flatten(1) for leaf in self._leaves]
            obs = torch.cat(parts, dim=1)
        if self.clip is not None:
            obs = normed(obs, self.shift, self.scale, self.clip)
        return self.network(obs if self._unpack is None else self._unpack(obs), *state)
