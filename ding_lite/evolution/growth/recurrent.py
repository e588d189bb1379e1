"""Growth and shrinking of recurrent layers, an LSTM or a GRU, with the moments of Adam.

Old units and the head read new units with weights of 0, so the function of the network stays the
same over whole sequences. New units come last, and read all units. A replay may hold states of
policies of different widths. If it does, the last units are removed first, so that a stored state
begins with the state of the narrower layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ding_lite.evolution.growth.layers import PolicyTensors, taken, units_after


@dataclass(frozen=True)
class Recurrent:
    """A recurrent layer, and the layer that reads it, by the names of their tensors."""

    name: str
    head: str
    is_stored: bool = False
    """Whether a replay holds its states, by unit."""

    def size(self, tensors: PolicyTensors) -> int:
        return int(tensors.values[0][f"{self.name}.weight_hh"].shape[-1])


def resize_memory(
    tensors: PolicyTensors, layer: Recurrent, *, count: int, rng: np.random.Generator
) -> None:
    """Add units to a recurrent layer; or remove the least important ones, for a count below 0.

    Adding preserves the network's function. The importance is the product of the norms of inputs
    and outputs. Of a layer with stored states the last units are removed.
    """
    size = layer.size(tensors)
    index = units_after(_importance(tensors.values[0], layer, size), count)
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


def _importance(values: Mapping[str, Tensor], layer: Recurrent, size: int) -> Tensor:
    if layer.is_stored:
        return torch.arange(size, 0, -1)
    recurrent = values[f"{layer.name}.weight_hh"].reshape(-1, size, size).square()
    into = values[f"{layer.name}.weight"].reshape(len(recurrent), size, -1).square().sum((0, 2))
    out = values[f"{layer.head}.weight"].square().sum(0) + recurrent.sum((0, 1))
    return (into + recurrent.sum((0, 2))) * out
