"""Critics for box actions: several networks that estimate the return, computed together.

The critics of one policy are the members of one `MLP`, so that each layer is one call for all of
them. In a population each critic is one `MLP`, with the policies as its members.

Shape letters: E critics, G policies that learn as one computation (one if a policy learns alone),
B rows of each, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from ding_lite.rl.networks.activations import Activation
from ding_lite.rl.networks.layers import MLP
from ding_lite.rl.packing import as_floats
from ding_lite.rl.weights.flat import FlatWeights


class Critics(Protocol):
    """Several networks of each of G policies that estimate the return of an action.

    Observations are those of all policies, as inputs of the networks; [B, ...] for one policy.
    """

    def forward(self, obs: Tensor, action_GBA: Tensor, /) -> Tensor:
        """Compute the values, [E, G, B]; nothing is recorded."""
        return self.forward_saving(obs, action_GBA)[0]

    def forward_saving(self, obs: Tensor, action_GBA: Tensor, /) -> tuple[Tensor, Any]:
        """Compute the values, and return the activations for `backward`."""

    def forward_action(self, obs: Tensor, action_GBA: Tensor, /) -> tuple[Tensor, Any]:
        """Compute the values, and return the activations for `backward_action`."""
        return self.forward_saving(obs, action_GBA)

    def backward(self, saved: Any, grad_EGB: Tensor, /) -> None:  # noqa: ANN401 - each its own
        """Write the gradients of the weights, given those of the values."""

    def backward_action(self, saved: Any, grad_EGB: Tensor, /) -> Tensor:  # noqa: ANN401
        """Compute the gradient of the action, [G, B, A], without gradients of the weights."""


class ActionValues(Critics):
    """E networks of one policy, of the same size, with a single output each."""

    def __init__(
        self,
        weights: FlatWeights,
        grads: FlatWeights,
        *,
        depth: int,
        num_actions: int,
        first: int | None = None,
        activation: Activation = "relu",
        see: Callable[[Tensor], Tensor] = as_floats,
    ) -> None:
        self._see, self._num_actions = see, num_actions
        *hidden, head = map(str, range(depth))
        self._layers = MLP(weights, grads, hidden, head, activation=activation, first=first)
        num_networks = weights["0.bias"][:first].shape[0]
        self._stacked = (num_networks, -1, -1)

    @staticmethod
    def shapes(
        num_networks: int, sizes: Sequence[int], *, prefix: str = ""
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of their tensors; `sizes` are those of the inputs and hidden layers."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (num_inputs, num_outputs) in enumerate(pairwise((*sizes, 1))):
            shapes[f"{prefix}{layer}.weight"] = (num_networks, num_outputs, num_inputs)
            shapes[f"{prefix}{layer}.bias"] = (num_networks, num_outputs)
        return shapes

    def forward_saving(self, obs: Tensor, action_1BA: Tensor) -> tuple[Tensor, list[Tensor]]:
        x_BI = torch.cat((self._see(obs), action_1BA[0]), dim=1)
        outputs = self._layers.forward(x_BI.expand(self._stacked))
        return outputs[-1].transpose(1, 2), outputs

    def backward(self, outputs: Sequence[Tensor], grad_E1B: Tensor) -> None:
        self._layers.backward(outputs, grad_E1B.transpose(1, 2))

    def backward_action(self, outputs: Sequence[Tensor], grad_E1B: Tensor) -> Tensor:
        grad_EB1 = grad_E1B.transpose(1, 2)
        grad_EBA = self._layers.backward_input(outputs, grad_EB1, last=self._num_actions)
        return grad_EBA.sum(0, keepdim=True)


class CriticsOfMembers(Critics):
    """E networks of each of G policies, with a single output each."""

    def __init__(self, networks: Sequence[MLP], *, num_actions: int) -> None:
        self._networks, self._num_actions = networks, num_actions

    def forward_saving(
        self, obs_GBI: Tensor, action_GBA: Tensor
    ) -> tuple[Tensor, list[list[Tensor]]]:
        x_GBI = torch.cat((obs_GBI, action_GBA), dim=2)
        saved = [network.forward(x_GBI) for network in self._networks]
        return torch.stack([outputs[-1].squeeze(2) for outputs in saved]), saved

    def backward(self, saved: Sequence[Sequence[Tensor]], grad_EGB: Tensor) -> None:
        for network, outputs, grad_GB in zip(self._networks, saved, grad_EGB, strict=True):
            network.backward(outputs, grad_GB.unsqueeze(2))

    def backward_action(self, saved: Sequence[Sequence[Tensor]], grad_EGB: Tensor) -> Tensor:
        grads_GBA = [
            network.backward_input(outputs, grad_GB.unsqueeze(2), last=self._num_actions)
            for network, outputs, grad_GB in zip(self._networks, saved, grad_EGB, strict=True)
        ]
        return torch.stack(grads_GBA).sum(0)
