"""Growth and shrinking of convolutions with ReLUs, with the moments of Adam.

New channels have weights of 0 in what reads them, a larger kernel has zeros around the former one
and one pixel more of padding, and a new layer is the identity, which the ReLU before it makes
exact: the function of the network stays the same. Adam's moments are carried over as in `layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ding_lite.evolution.growth.layers import PolicyTensors, taken
from ding_lite.rl.networks.conv import Conv

Convs = tuple[Conv, ...]
READER = "torso.0"
"""The layer that reads the last convolution."""


def add_channels(
    tensors: PolicyTensors, convs: Convs, layer: int, *, count: int, rng: np.random.Generator
) -> Convs:
    """Add output channels to a convolution; the network's function stays the same."""
    channels = convs[layer].channels
    _resize(tensors, convs, layer, [*range(channels), *[-1] * count], rng)
    return _replaced(convs, layer, channels=channels + count)


def remove_channels(
    tensors: PolicyTensors, convs: Convs, layer: int, *, count: int, rng: np.random.Generator
) -> Convs:
    """Remove the output channels of the least importance from a convolution."""
    values, channels = tensors.values[0], convs[layer].channels
    into = values[f"conv.{layer}.weight"].square().sum((1, 2, 3))
    into = into + values[f"conv.{layer}.bias"].square()
    out = _by_channel(values[_reader(convs, layer)], channels).square().sum((0, 2))
    best = (into * out).argsort(descending=True, stable=True)[: channels - count]
    _resize(tensors, convs, layer, sorted(best.tolist()), rng)
    return _replaced(convs, layer, channels=channels - count)


def grow_kernel(tensors: PolicyTensors, convs: Convs, layer: int) -> Convs:
    """Add a border of zeros to the kernels of a convolution; its function stays the same."""
    name, conv = f"conv.{layer}.weight", convs[layer]
    for values in tensors.values:
        values[name] = F.pad(values[name], (1, 1, 1, 1))
    for means, squares in tensors.moments:
        if name in means:
            means[name] = F.pad(means[name], (1, 1, 1, 1))
            usual = float(squares[name].mean())
            squares[name] = F.pad(squares[name], (1, 1, 1, 1), value=usual)
    return _replaced(convs, layer, kernel=conv.kernel + 2, padding=conv.padding + 1)


def shrink_kernel(tensors: PolicyTensors, convs: Convs, layer: int) -> Convs:
    """Remove the border of the kernels of a convolution, which must have padding."""
    name, conv = f"conv.{layer}.weight", convs[layer]
    for named in _all(tensors):
        if name in named:
            named[name] = named[name][:, :, 1:-1, 1:-1].clone()
    return _replaced(convs, layer, kernel=conv.kernel - 2, padding=conv.padding - 1)


def add_convolution(tensors: PolicyTensors, convs: Convs, layer: int) -> Convs:
    """Add a convolution of 3 x 3 behind another; the network's function stays the same."""
    channels = convs[layer].channels
    _rename(tensors, {old: old + 1 for old in reversed(range(layer + 1, len(convs)))})
    weight, bias = torch.zeros(channels, channels, 3, 3), torch.zeros(channels)
    weight[range(channels), range(channels), 1, 1] = 1.0
    for kind, tensor in (("weight", weight), ("bias", bias)):
        name, beside = f"conv.{layer + 1}.{kind}", f"conv.{layer}.{kind}"
        for values in tensors.values:
            values[name] = tensor.clone()
        for means, squares in tensors.moments:
            if beside in means:
                means[name] = torch.zeros_like(tensor)
                squares[name] = torch.full_like(tensor, float(squares[beside].mean()))
    new = Conv(channels, 3, 1, padding=1)
    return (*convs[: layer + 1], new, *convs[layer + 1 :])


def is_removable(conv: Conv) -> bool:
    """Return whether a convolution keeps the size of images."""
    return conv.stride == 1 and 2 * conv.padding == conv.kernel - 1


def remove_convolution(tensors: PolicyTensors, convs: Convs, layer: int) -> Convs:
    """Remove a convolution that keeps the size of images.

    What it does to channels, summed over its kernel, is multiplied into the weights that read it.
    """
    reader = _reader(convs, layer)
    of_bias = f"{reader.rpartition('.')[0]}.bias"
    channels = convs[layer].channels
    for values in tensors.values:
        mixing_OI = values.pop(f"conv.{layer}.weight").sum((2, 3))
        bias_O, read = values.pop(f"conv.{layer}.bias"), values[reader]
        by_channel = _by_channel(read, channels)
        mixed = torch.einsum("rop,oi->rip", by_channel, mixing_OI)
        values[of_bias] = values[of_bias] + torch.einsum("rop,o->r", by_channel, bias_O)
        values[reader] = _of_shape(mixed, read)
    for means, squares in tensors.moments:
        for named in (means, squares):
            named.pop(f"conv.{layer}.weight", None)
            named.pop(f"conv.{layer}.bias", None)
        shape = tensors.values[0][reader].shape
        if reader in means and means[reader].shape != shape:
            means[reader] = torch.zeros(shape)
            squares[reader] = torch.full(shape, float(squares[reader].mean()))
    _rename(tensors, {old: old - 1 for old in range(layer + 1, len(convs))})
    return (*convs[:layer], *convs[layer + 1 :])


def _resize(
    tensors: PolicyTensors,
    convs: Convs,
    layer: int,
    source: Sequence[int],
    rng: np.random.Generator,
) -> None:
    """Replace the output channels of a convolution by those of `source`; -1 is a new one."""
    weight, bias, reader = f"conv.{layer}.weight", f"conv.{layer}.bias", _reader(convs, layer)
    index, like = torch.tensor(source), tensors.values[0][weight]
    bound = 1.0 / float(np.sqrt(like[0].numel()))
    shape = (len(source), like[0].numel() + 1)
    drawn = torch.from_numpy(rng.uniform(-bound, bound, size=shape).astype(np.float32))
    fresh = {weight: drawn[:, :-1].reshape(len(source), *like.shape[1:]), bias: drawn[:, -1]}
    channels = convs[layer].channels

    def rows(tensor: Tensor, new: Tensor | None) -> Tensor:
        return taken(tensor, -tensor.dim(), index, new)

    def columns(tensor: Tensor, new: Tensor | None) -> Tensor:
        split = _by_channel(tensor, channels)
        if new is not None:
            new = new.flatten()[:1].expand(split.shape[0], len(source), split.shape[2])
        return _of_shape(taken(split, -2, index, new), tensor)

    changes: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
        weight: rows,
        bias: rows,
        reader: columns,
    }
    for name, change in changes.items():
        for values in tensors.values:
            values[name] = change(values[name], fresh.get(name))
        for means, squares in tensors.moments:
            if name in means:
                usual = float(squares[name].mean())
                means[name] = change(means[name], None)
                filled = torch.full_like(means[name], usual)
                squares[name] = change(squares[name], filled)


def _reader(convs: Convs, layer: int) -> str:
    """Return the name of the weights that read a convolution."""
    return f"conv.{layer + 1}.weight" if layer + 1 < len(convs) else f"{READER}.weight"


def _by_channel(read: Tensor, channels: int) -> Tensor:
    """Return weights as [outputs, channels that are read, pixels]."""
    return read.reshape(read.shape[0], channels, -1)


def _of_shape(by_channel: Tensor, like: Tensor) -> Tensor:
    """Return weights of `_by_channel` in the form that they had."""
    if like.dim() == 2:
        return by_channel.reshape(len(like), -1)
    return by_channel.reshape(len(like), -1, *like.shape[2:])


def _all(tensors: PolicyTensors) -> list[dict[str, Tensor]]:
    return [*tensors.values, *(named for pair in tensors.moments for named in pair)]


def _rename(tensors: PolicyTensors, places: dict[int, int]) -> None:
    for named in _all(tensors):
        for old, new in places.items():
            for kind in ("weight", "bias"):
                if f"conv.{old}.{kind}" in named:
                    named[f"conv.{new}.{kind}"] = named.pop(f"conv.{old}.{kind}")


def _replaced(convs: Convs, layer: int, **changes: int) -> Convs:
    return (*convs[:layer], replace(convs[layer], **changes), *convs[layer + 1 :])
