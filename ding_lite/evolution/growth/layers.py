"""Growth and shrinking of networks, with the moments of Adam.

A network is a chain of fully connected layers. Growth preserves its function: the next layer reads
new units with weights of 0 (Chen et al. 2016, arXiv:1511.05641, do the same with copies), and a new
layer begins as the identity, as `IDENTITIES` defines for each activation. Old units of an LSTM or a
GRU read new ones with weights of 0, too, so that its function stays the same over whole sequences.
Shrinking removes the least important units, and multiplies the weights of a removed layer into the
next layers. The moments of Adam are kept for the kept part of a tensor. The second moments of a new
part begin with the mean of the tensor's, so that its first steps are as long as those of the other
parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ding_lite.rl.networks.activations import Activation

Tensors: TypeAlias = dict[str, Tensor]
Change: TypeAlias = Callable[[Tensor, Tensor | float], Tensor]
Merge: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Identity:
    """A hidden layer and the layer that reads it as an identity, x = read f(weight x + bias).

    `weight` and `read` have an entry for each copy of a unit; x is the output of the activation f.
    """

    weight: tuple[float, ...] = (1.0,)
    """The weight of x in each copy."""
    read: tuple[float, ...] = (1.0,)
    """The weight of each copy in the sum."""
    bias: float = 0.0
    """The bias of the new layer."""
    slope: float = 1.0
    """The slope of f at the bias; removing a layer multiplies by it."""


_SMALL = 1.0 / 16.0
"""The weight with which a layer of tanh is nearly linear."""

IDENTITIES: dict[Activation, Identity] = {
    "relu": Identity(),
    "elu": Identity(bias=1.0),
    "gelu": Identity(weight=(1.0, -1.0), read=(1.0, -1.0), slope=0.5),
    "silu": Identity(weight=(1.0, -1.0), read=(1.0, -1.0), slope=0.5),
    "tanh": Identity(
        weight=(_SMALL, 2.0 * _SMALL), read=(4.0 / (3.0 * _SMALL), -1.0 / (6.0 * _SMALL))
    ),
}
"""ReLU does not change its own output, which is never below 0. With a bias of 1 ELU does not change
its output, which is never below -1. GELU and SiLU are x times a function g(x) with
g(x) + g(-x) = 1, so f(x) - f(-x) = x, and a new layer has two units for each. These are exact up to
rounding. For tanh, 4 tanh(ax) / 3a - tanh(2ax) / 6a = x - 8/15 a^4 x^5 + ..., as the terms of third
order cancel; for x between -1 and 1 the error is at most 8.2e-6."""


@dataclass(frozen=True)
class Chain:
    """The layers of one network, in order, by the names of their tensors."""

    hidden: tuple[str, ...]
    """The names of the hidden layers."""
    heads: tuple[str, ...]
    """The names of the layers that read the last hidden layer, and maybe more inputs after it."""
    read_in_halves: bool = False
    """Whether two heads read one half each of the last hidden layer, which is then twice as wide as
    the config says."""
    first: int = 0
    """The index in the config of the first hidden layer of this chain."""

    def has(self, layer: int) -> bool:
        return 0 <= layer - self.first < len(self.hidden)

    def readers(self, layer: int) -> tuple[str, ...]:
        return (self.hidden[layer + 1],) if layer + 1 < len(self.hidden) else self.heads

    def is_split(self, layer: int) -> bool:
        """Return whether each reader of a hidden layer reads one half of it."""
        return self.read_in_halves and layer + 1 == len(self.hidden)


def split_moments(
    adam: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]
) -> tuple[Tensors, Tensors]:
    """Return the first and second moments in a state of Adam by the names of its weights."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    means, squares = (
        {
            n: part.view(tuple(shapes[n]))
            for n, part in zip(shapes, torch.split(flat, sizes), strict=True)
        }
        for flat in (adam["mean"], adam["square"])
    )
    return means, squares


def carried_counts(
    adam: Mapping[str, Tensor], before: Iterable[str], after: Iterable[str]
) -> Tensor:
    """Return the numbers of updates in a state of Adam, one or by weights; new ones get the most.

    `before` and `after` are the names of its weights, in their order.
    """
    counts = adam["num_updates"]
    if not counts.ndim:
        return counts
    named = dict(zip(before, counts, strict=True))
    return torch.stack([named.get(name, counts.max()) for name in after])


def join_moments(moments: Iterable[Tensors], order: Iterable[str]) -> dict[str, Tensor]:
    """Return moments as they are in a state of Adam; names that they lack are left out."""
    names = [*order]
    flat = (torch.cat([named[n].reshape(-1) for n in names if n in named]) for named in moments)
    return dict(zip(("mean", "square"), flat, strict=True))


@dataclass
class PolicyTensors:
    """The tensors of a policy's networks and optimisers, by name."""

    values: list[Tensors]
    """The weights, and the target weights, which may lack some names."""
    moments: list[tuple[Tensors, Tensors]]
    """The first and second moments of each optimiser, which together have all names of the first
    values."""

    def change(self, name: str, change: Change, new: Tensor | float = 0.0) -> None:
        """Change a tensor, and its moments likewise.

        `change` is called with a tensor and the value of its new parts: `new` for weights, 0 for
        first moments, and the mean for second moments.
        """
        for values in self.values:
            if name in values:
                values[name] = change(values[name], new)
        for means, squares in self.moments:
            if name in means:
                usual = float(squares[name].mean())
                means[name], squares[name] = change(means[name], 0.0), change(squares[name], usual)

    def take(self, layer: str, index: Tensor, rng: np.random.Generator, *, dim: int = -2) -> None:
        """Replace the units of a layer by those at the indices; -1 is a new unit.

        Weights of new units are drawn as PyTorch does. `dim` is the axis of units in the weights.
        """
        like = self.values[0][f"{layer}.weight"]
        inputs = like.shape[dim + 1 :]
        bound = 1.0 / float(np.sqrt(inputs.numel()))
        shape = (*like.shape[:dim], len(index), inputs.numel() + 1)
        drawn = torch.from_numpy(rng.uniform(-bound, bound, size=shape).astype(np.float32))
        weight = drawn[..., :-1].reshape(*shape[:-1], *inputs)
        self.change(f"{layer}.weight", partial(taken, dim=dim, index=index), weight)
        self.change(f"{layer}.bias", partial(taken, dim=-1, index=index), drawn[..., -1])

    def insert(self, layer: str, weight: Tensor, bias: Tensor, *, beside: str) -> None:
        """Add a layer to all values and moments that have the layer `beside`."""
        for kind, tensor in (("weight", weight), ("bias", bias)):
            name, other = f"{layer}.{kind}", f"{beside}.{kind}"
            for values in self.values:
                if other in values:
                    values[name] = tensor.clone()
            for means, squares in self.moments:
                if other in means:
                    means[name] = torch.zeros_like(tensor)
                    squares[name] = torch.full_like(tensor, float(squares[other].mean()))

    def merge(self, layer: str, readers: Sequence[str], merge: Merge) -> None:
        """Remove a layer, and multiply its weights into the layers that read it.

        `merge` is called with a reader's weights, and the layer's weights and bias. It returns the
        new weights of the reader, and the values to add to its bias.
        """
        name, of_bias = f"{layer}.weight", f"{layer}.bias"
        for values in (each for each in self.values if name in each):
            weight, bias = values.pop(name), values.pop(of_bias)
            for reader in readers:
                read, more = merge(values[f"{reader}.weight"], weight, bias)
                values[f"{reader}.weight"] = read
                values[f"{reader}.bias"] = values[f"{reader}.bias"] + more
        for means, squares in (pair for pair in self.moments if name in pair[0]):
            for named in (means, squares):
                del named[name], named[of_bias]
            for read_by in (f"{reader}.weight" for reader in readers):
                shape = self.values[0][read_by].shape
                if means[read_by].shape != shape:
                    means[read_by] = torch.zeros(shape)
                    squares[read_by] = torch.full(shape, float(squares[read_by].mean()))

    def rename(self, layers: Mapping[str, str]) -> None:
        for named in (*self.values, *(each for pair in self.moments for each in pair)):
            pairs = [
                (f"{a}.{k}", f"{b}.{k}") for a, b in layers.items() for k in ("weight", "bias")
            ]
            named.update({new: named.pop(old) for old, new in pairs if old in named})


def resize(
    tensors: PolicyTensors, chain: Chain, layer: int, *, count: int, rng: np.random.Generator
) -> None:
    """Add units to a hidden layer; or remove the least important ones, for a count below 0.

    Adding preserves the network's function.
    """
    score, is_split = _importance(tensors.values[0], chain, layer), chain.is_split(layer)
    width = len(score) // 2 if is_split else len(score)
    units = units_after(score.reshape(-1, width).sum(dim=0), count)  # both halves, if there are two
    both = torch.cat((units, torch.where(units < 0, -1, units + width)))
    tensors.take(chain.hidden[layer], both if is_split else units, rng)
    for reader in (f"{reader}.weight" for reader in chain.readers(layer)):
        beyond = torch.arange(width, tensors.values[0][reader].shape[-1])
        tensors.change(reader, partial(taken, dim=-1, index=torch.cat((units, beyond))))


def deepen(
    tensors: PolicyTensors,
    before: Chain,
    after: Chain,
    layer: int,
    *,
    activation: Activation = "relu",
) -> None:
    """Add a hidden layer behind the layer `layer`; the network's function stays the same.

    The new layer has the units of that layer, once for each entry of `Identity.weight`.
    """
    identity, beside = IDENTITIES[activation], after.hidden[layer]
    _rename(
        tensors, before, after, [*range(layer + 1), None, *range(layer + 1, len(before.hidden))]
    )
    like = tensors.values[0][f"{beside}.weight"]
    parts = torch.cat([one * torch.eye(like.shape[-2]) for one in identity.weight])
    weight = parts.expand(*like.shape[:-2], *parts.shape).clone()
    bias = torch.full(weight.shape[:-1], identity.bias)
    tensors.insert(after.hidden[layer + 1], weight, bias, beside=beside)
    if identity.weight != (1.0,) or identity.bias:
        for reader in after.readers(layer + 1):
            _read_identity(tensors, reader, identity)


def _read_identity(tensors: PolicyTensors, reader: str, identity: Identity) -> None:
    name, of_bias = f"{reader}.weight", f"{reader}.bias"
    for values in tensors.values:
        if name in values:
            weight = values[name]
            values[of_bias] = values[of_bias] - identity.bias * weight.sum(-1)
            values[name] = torch.cat([read * weight for read in identity.read], dim=-1)
    for means, squares in tensors.moments:
        if name in means:  # a gradient by `read * weight` is that by weight, over `read`
            means[name] = torch.cat([means[name] / read for read in identity.read], dim=-1)
            squares[name] = torch.cat([squares[name] / read**2 for read in identity.read], dim=-1)


def shorten(
    tensors: PolicyTensors,
    before: Chain,
    after: Chain,
    layer: int,
    *,
    activation: Activation = "relu",
) -> None:
    """Remove a hidden layer, and multiply its weights into the next one's."""

    def merge(read: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        read = IDENTITIES[activation].slope * read
        return read @ weight, (read @ bias.unsqueeze(-1)).squeeze(-1)

    tensors.merge(before.hidden[layer], before.readers(layer), merge)
    places = [index for index in range(len(before.hidden)) if index != layer]
    _rename(tensors, before, after, places)


def units_after(score: Tensor, count: int) -> Tensor:
    """Return the indices of units after `count` more, -1 each, or after removal if below 0.

    The units with the lowest scores are removed.
    """
    kept = score.argsort(descending=True, stable=True)[: len(score) + min(count, 0)]
    return torch.cat((kept.sort().values, torch.full((max(count, 0),), -1)))


def taken(tensor: Tensor, new: Tensor | float, *, dim: int, index: Tensor) -> Tensor:
    """Return the parts of a tensor at the indices; an index of -1 gets the value `new`."""
    is_new = (index < 0).view(-1, *[1] * (-1 - dim))
    return torch.where(is_new, new, tensor.index_select(dim, index.clamp(min=0)))


def _importance(values: Mapping[str, Tensor], chain: Chain, layer: int) -> Tensor:
    """Return the importance of each unit: the norm of its inputs times that of its outputs."""
    name = chain.hidden[layer]
    into = values[f"{name}.weight"].square().sum(-1) + values[f"{name}.bias"].square()
    read = [values[f"{reader}.weight"] for reader in chain.readers(layer)]
    out = [weight[..., : into.shape[-1]].square().sum(-2) for weight in read]
    outwards = torch.cat(out, -1) if chain.is_split(layer) else torch.stack(out).sum(0)
    return (into * outwards).reshape(-1, into.shape[-1]).sum(0)


def _rename(
    tensors: PolicyTensors, before: Chain, after: Chain, places: Sequence[int | None]
) -> None:
    """Rename layers to the names of another chain; a place of None has no layer before."""
    pairs = zip(after.hidden, places, strict=True)
    names = {before.hidden[old]: new for new, old in pairs if old is not None}
    tensors.rename(names | dict(zip(before.heads, after.heads, strict=True)))


@dataclass(frozen=True)
class Recurrent:
    """A recurrent layer, and the layer that reads it, by the names of their tensors.

    New units come last, and read all units. A replay may hold states of policies of different
    widths. If it does, the last units are removed first, so that a stored state begins with the
    state of the narrower layer.
    """

    name: str
    head: str
    is_stored: bool = False
    """Whether a replay holds its states, by unit."""


def resize_memory(
    tensors: PolicyTensors, layer: Recurrent, *, count: int, rng: np.random.Generator
) -> None:
    """Add units to a recurrent layer; or remove the least important ones, for a count below 0.

    Adding preserves the network's function. The importance is the product of the norms of inputs
    and outputs. Of a layer with stored states the last units are removed.
    """
    size = tensors.values[0][f"{layer.name}.weight_hh"].shape[-1]
    index = units_after(_importance_of_memory(tensors.values[0], layer, size), count)
    bound = 1.0 / float(np.sqrt(len(index)))

    def units(tensor: Tensor, new: Tensor | float) -> Tensor:
        """Take the units of each gate."""
        by_gate = tensor.reshape(-1, size, *tensor.shape[1:])
        return taken(by_gate, new, dim=-tensor.dim(), index=index).flatten(0, 1)

    for kind in ("weight", "weight_hh", "bias", "bias_hh"):
        name = f"{layer.name}.{kind}"
        like = tensors.values[0][name]
        shape = (len(like) // size, len(index), *like.shape[1:])
        drawn = rng.uniform(-bound, bound, size=shape).astype(np.float32)
        tensors.change(name, units, torch.from_numpy(drawn))
    columns = partial(taken, dim=-1, index=index)
    for name in (f"{layer.name}.weight_hh", f"{layer.head}.weight"):
        tensors.change(name, columns)


def _importance_of_memory(values: Mapping[str, Tensor], layer: Recurrent, size: int) -> Tensor:
    if layer.is_stored:
        return torch.arange(size, 0, -1)
    recurrent = values[f"{layer.name}.weight_hh"].reshape(-1, size, size).square()
    into = values[f"{layer.name}.weight"].reshape(len(recurrent), size, -1).square().sum((0, 2))
    out = values[f"{layer.head}.weight"].square().sum(0) + recurrent.sum((0, 1))
    return (into + recurrent.sum((0, 2))) * out
