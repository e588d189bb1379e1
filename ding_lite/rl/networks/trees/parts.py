"""The built-in networks for observations of several parts, some of which are images.

Each image passes through its own convolutions. Their outputs and the other parts are joined into
one vector, followed by hidden layers. Gradients come from autograd. Without images the parts are
joined at once, and the networks are those of vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ding_lite.rl.networks.conv import AnyTorso, Conv, num_features, torso_for
from ding_lite.rl.networks.inputs import RunningNorm, as_floats
from ding_lite.rl.networks.modules import Normalized
from ding_lite.rl.packing import Leaf, Packing, Tree
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
            _convolutions(leaf.shape[0], layers)
            for leaf, layers in zip(self._leaves, convs, strict=True)
        )
        self.num_outputs = sum(sizes)

    def forward(self, tree: Tree) -> Tensor:
        features = [
            layers(as_floats(leaf.find(tree))).flatten(1)
            for leaf, layers in zip(self._leaves, self.conv, strict=True)
        ]
        return torch.cat(features, dim=1)


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def of_parts(
    make: Callable[..., ModuleT],
    spec: EnvSpec,
    torso: AnyTorso,
    hidden: Sequence[int],
    **shape: Any,  # noqa: ANN401 - what `make` takes
) -> ModuleT:
    """Make a module for observations of several parts, behind an encoder of them."""
    encoder = PartsEncoder(spec, torso)
    return make((encoder.num_outputs,), (), hidden, encoder=encoder, **shape)


def for_inference(
    network: nn.Module, spec: EnvSpec, norm: RunningNorm | None, *, sees_trees: bool
) -> nn.Module:
    """Return a network with the policy's preprocessing, as a module in evaluation mode."""
    if norm is None and (sees_trees or spec.packing is None):
        return acting(network)
    if spec.packing is None:
        return acting(Normalized(network, norm))
    return acting(FromTree(network, spec.packing, norm, sees_trees=sees_trees))


class FromTree(Normalized):
    """A network with a tree of observations as its input, for inference."""

    def __init__(
        self,
        network: nn.Module,
        packing: Packing,
        norm: RunningNorm | None,
        *,
        sees_trees: bool = False,
    ) -> None:
        super().__init__(network, norm, size=packing.num_inputs)
        self._unpack = packing.unpack if sees_trees else None
        self._leaves, self._is_one_leaf = packing.leaves, packing.is_one_leaf

    def forward(self, tree: Tree, state: Tensor | None = None) -> Any:  # noqa: ANN401 - what the network returns
        if self._is_one_leaf and self.clip is None:
            return self.network(tree) if state is None else self.network(tree, state)
        parts = [as_floats(leaf.find(tree)).flatten(1) for leaf in self._leaves]
        joined = torch.cat(parts, dim=1)
        if self.clip is not None:
            joined = self.normed(joined)
        inputs: Any = joined if self._unpack is None else self._unpack(joined)
        return self.network(inputs) if state is None else self.network(inputs, state)


def _convolutions(in_channels: int, convs: Sequence[Conv]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for conv in convs:
        layers += [
            nn.Conv2d(in_channels, conv.channels, conv.kernel, conv.stride, conv.padding),
            nn.ReLU(),
        ]
        in_channels = conv.channels
    return nn.Sequential(*layers)
