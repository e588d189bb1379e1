"""The protocol of all networks, and the base of those with a written-out backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from ding_lite.rl.weights.flat import FlatWeights, SavedNetwork
from ding_lite.rl.weights.flat_module import bind, parameters_of


class Network(SavedNetwork, Protocol):
    """Flat weights with their gradients."""

    weights: FlatWeights
    grads: FlatWeights

    @property
    def module(self) -> nn.Module:
        """The network as a plain module in the same memory, with all parameters."""

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """The tensors that are saved but not learned by gradients, such as running means."""


class Written:
    """The weights of a module, which may be on the device `meta`, beside a written-out backward."""

    def __init__(
        self,
        module: nn.Module,
        *,
        device: str | torch.device = "cpu",
        last: str = "",
    ) -> None:
        self.module = module
        shapes = {name: each.shape for name, each in parameters_of(module, last=last).items()}
        self.weights = FlatWeights(shapes, device=device)
        self.grads = self.weights.zeros_like()
        bind(module, self.weights, self.grads)
        self.snapshot, self.load = self.weights.snapshot, self.weights.load
        self.buffers: Mapping[str, Tensor] = {}
