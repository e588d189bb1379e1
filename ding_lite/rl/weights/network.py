"""The protocol of all networks, and the base of those with a written-out backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol

from torch import Tensor, nn

from ding_lite.rl.weights.flat import FlatWeights, SavedNetwork
from ding_lite.rl.weights.flat_module import bind, seeded


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
    """Weights of a network with a written-out backward, without buffers.

    `make_module` makes a module with parameters of the same names.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        make_module: Callable[[], nn.Module],
        *,
        device: Any = "cpu",  # noqa: ANN401 - as PyTorch names it
    ) -> None:
        self.weights = FlatWeights(shapes, device=device)
        self.grads = self.weights.zeros_like()
        self.snapshot, self.load = self.weights.snapshot, self.weights.load
        self.buffers: Mapping[str, Tensor] = {}
        self._make_module = make_module

    @cached_property
    def module(self) -> nn.Module:
        with seeded(0, "unused"):
            module = self._make_module()
        bind(module, self.weights, self.grads)
        return module
