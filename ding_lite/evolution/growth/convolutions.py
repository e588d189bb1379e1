"""Growth and shrinking of convolutions with ReLUs, with the moments of Adam.

Growth preserves the network's function: the next layer reads new channels with weights of 0, a
larger kernel has zeros around the former one and one more pixel of padding, and a new layer is
the identity, which is exact behind a ReLU. Adam's moments are carried over as in `layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ding_lite.evolution.growth.layers import PolicyTensors, taken, units_after
from ding_lite.rl.networks.conv import Conv

Convs: TypeAlias = tuple[Conv, ...]


@dataclass(frozen=True)
class ConvChain:
    """The convolutions of one image, by the names of their tensors."""

    name: str
    """The prefix of the names of the convolutions."""
    reader: str
    """The name of the layer that reads the last convolution."""
    pixels: int
    """The number of pixels per channel after the last convolution; changes here preserve it."""
    start: int = 0
    """The number of inputs of `reader` before those of the convolutions."""
    step: int = 1
    """The difference between the numbers of successive convolutions."""

    def layer(self, index: int) -> str:
        return f"{self.name}.{index * self.step}"

    def reader_of(self, layer: int, convs: Convs) -> str:
        return self.layer(layer + 1) if layer + 1 < len(convs) else self.reader

    def by_channel(self, read: Tensor, channels: int) -> Tensor:
        """Return weights of a reader as [outputs, channels that are read, pixels]."""
        if read.dim() == 2:
            read = read[:, self.start : self.start + channels * self.pixels]
        return read.reshape(len(read), channels, -1)

    def with_channels(self, read: Tensor, channels: int, new: Tensor) -> Tensor:
        """Return weights of a reader with the part of `by_channel` replaced by `new`."""
        if read.dim() == 4:
            return new.reshape(len(read), -1, *read.shape[2:])
        behind = read[:, self.start + channels * self.pixels :]
        return torch.cat((read[:, : self.start], new.flatten(1), behind), dim=1)


ChangeConvs: TypeAlias = Callable[[PolicyTensors, ConvChain, Convs, int], Convs]
"""Changes a convolution of a chain, by its number; returns the new list of convolutions."""


def change_convs(
    tensors: PolicyTensors,
    chains: Sequence[ConvChain],
    convs: Convs,
    layer: int,
    change: ChangeConvs,
) -> Convs:
    """Change the same convolution for each image; return the new list of convolutions."""
    found = convs
    for chain in reversed(chains):  # the `start` of the other chains then stays valid
        found = change(tensors, chain, convs, layer)
    return found


def resize_channels(
    tensors: PolicyTensors,
    chain: ConvChain,
    convs: Convs,
    layer: int,
    *,
    count: int,
    rng: np.random.Generator,
) -> Convs:
    """Add output channels to a convolution; or remove the least important, for a count below 0.

    Adding preserves the network's function.
    """
    values, name, channels = tensors.values[0], chain.layer(layer), convs[layer].channels
    reader = f"{chain.reader_of(layer, convs)}.weight"
    into = values[f"{name}.weight"].square().sum((1, 2, 3)) + values[f"{name}.bias"].square()
    read_by = chain.by_channel(values[reader], channels).square().sum((0, 2))
    index = units_after(into * read_by, count)

    def columns(read: Tensor, new: Tensor | float) -> Tensor:
        found = taken(chain.by_channel(read, channels), new, dim=-2, index=index)
        return chain.with_channels(read, channels, found)

    tensors.take(name, index, rng, dim=-4)
    tensors.change(reader, columns)
    return _replaced(convs, layer, channels=channels + count)


def grow_kernel(tensors: PolicyTensors, chain: ConvChain, convs: Convs, layer: int) -> Convs:
    """Add a border of zeros to the kernels of a convolution; its function stays the same."""

    def pad(weight: Tensor, new: Tensor | float) -> Tensor:
        return F.pad(weight, (1, 1, 1, 1), value=float(new))

    tensors.change(f"{chain.layer(layer)}.weight", pad)
    conv = convs[layer]
    return _replaced(convs, layer, kernel=conv.kernel + 2, padding=conv.padding + 1)


def shrink_kernel(tensors: PolicyTensors, chain: ConvChain, convs: Convs, layer: int) -> Convs:
    """Remove the border of the kernels of a convolution, which must have padding."""
    tensors.change(f"{chain.layer(layer)}.weight", lambda w, _: w[:, :, 1:-1, 1:-1].clone())
    conv = convs[layer]
    return _replaced(convs, layer, kernel=conv.kernel - 2, padding=conv.padding - 1)


def add_convolution(tensors: PolicyTensors, chain: ConvChain, convs: Convs, layer: int) -> Convs:
    """Add a convolution of 3 x 3 behind another; the network's function stays the same."""
    channels = convs[layer].channels
    behind = range(layer + 1, len(convs))
    tensors.rename({chain.layer(old): chain.layer(old + 1) for old in behind})
    weight, bias = torch.zeros(channels, channels, 3, 3), torch.zeros(channels)
    weight[range(channels), range(channels), 1, 1] = 1.0
    tensors.insert(chain.layer(layer + 1), weight, bias, beside=chain.layer(layer))
    return (*convs[: layer + 1], Conv(channels, 3, 1, padding=1), *convs[layer + 1 :])


def is_removable(conv: Conv) -> bool:
    """Return whether a convolution keeps the size of images."""
    return conv.stride == 1 and 2 * conv.padding == conv.kernel - 1


def remove_convolution(tensors: PolicyTensors, chain: ConvChain, convs: Convs, layer: int) -> Convs:
    """Remove a convolution that keeps the size of images.

    Its kernel, summed over the pixels, is multiplied into the weights that read it.
    """
    channels = convs[layer].channels

    def merge(read: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        by_channel = chain.by_channel(read, channels)
        mixed = torch.einsum("rop,oi->rip", by_channel, weight.sum((2, 3)))
        more = torch.einsum("rop,o->r", by_channel, bias)
        return chain.with_channels(read, channels, mixed), more

    tensors.merge(chain.layer(layer), [chain.reader_of(layer, convs)], merge)
    behind = range(layer + 1, len(convs))
    tensors.rename({chain.layer(old): chain.layer(old - 1) for old in behind})
    return (*convs[:layer], *convs[layer + 1 :])


def _replaced(convs: Convs, layer: int, **changes: int) -> Convs:
    return (*convs[:layer], replace(convs[layer], **changes), *convs[layer + 1 :])
