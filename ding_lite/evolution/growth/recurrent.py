"""Growth and shrinking of recurrent layers, an LSTM or a GRU, with the moments of Adam.

Old units and the head read new units with weights of 0, so the function of the network stays the
same over whole sequences. New units come last, and read all units. A replay may hold states of
policies of different widths. If it does, the last units are removed first, so that a stored state
begins with the state of the narrower layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ding_lite.evolution.growth.layers import PolicyTensors, taken


@dataclass(frozen=True)
class Recurrent:
    """A recurrent layer, and the layer that reads it, by the names of their tensors."""

    name: str
    head: str
    is_stored: bool = False
    """Whether a replay holds its states, by unit."""

    def size(self, tensors: PolicyTensors) -> int:
        """Return its width."""
        return int(tensors.values[0][f"{self.name}.weight_hh"].shape[-1])


def widen_memory(
    tensors: PolicyTensors, layer: Recurrent, *, count: int, rng: np.random.Generator
) -> None:
    """Add units to a recurrent layer; the network's function stays the same."""
    _resize(tensors, layer, [*range(layer.size(tensors)), *[-1] * count], rng)


def narrow_memory(
    tensors: PolicyTensors, layer: Recurrent, *, count: int, rng: np.random.Generator
) -> None:
    """Remove the least important units: norms of their inputs times norms of their outputs.

    In a layer with stored states, the last units are removed.
    """
    values, size = tensors.values[0], layer.size(tensors)
    if layer.is_stored:
        _resize(tensors, layer, range(size - count), rng)
        return
    recurrent = values[f"{layer.name}.weight_hh"].reshape(-1, size, size).square()
    into = values[f"{layer.name}.weight"].reshape(len(recurrent), size, -1).square().sum((0, 2))
    out = values[f"{layer.head}.weight"].square().sum(0) + recurrent.sum((0, 1))
    best = ((into + recurrent.sum((0, 2))) * out).argsort(descending=True, stable=True)
    _resize(tensors, layer, sorted(best[: size - count].tolist()), rng)


def _resize(
    tensors: PolicyTensors, layer: Recurrent, source: Sequence[int], rng: np.random.Generator
) -> None:
    """Replace the units of a layer by those at `source`; -1 is a new unit."""
    size, index, bound = (
        layer.size(tensors),
        torch.tensor(source),
        1.0 / float(np.sqrt(len(source))),
    )

    def units(tensor: Tensor, new: Tensor | float) -> Tensor:
        """Take the units of each gate."""
        by_gate = tensor.reshape(-1, size, *tensor.shape[1:])
        return taken(by_gate, new, dim=-tensor.dim(), index=index).flatten(0, 1)

    for kind in ("weight", "weight_hh", "bias", "bias_hh"):
        name = f"{layer.name}.{kind}"
        like = tensors.values[0][name]
        shape = (len(like) // size, len(source), *like.shape[1:])
        drawn = rng.uniform(-bound, bound, size=shape).astype(np.float32)
        tensors.change(name, units, torch.from_numpy(drawn))
    columns = partial(taken, dim=-1, index=index)
    for name in (f"{layer.name}.weight_hh", f"{layer.head}.weight"):
        tensors.change(name, columns)
