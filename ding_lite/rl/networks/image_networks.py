"""The built-in actors and critics for box actions of images: convolutions, then hidden layers.

The actor has its own convolutions, and the critics share theirs, so that the loss of the one does
not change the features of the other. Gradients come from autograd.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ding_lite.rl.networks.activations import Activation
from ding_lite.rl.networks.conv import Conv
from ding_lite.rl.networks.modules import Branch, Torso


class ImageActor(Torso):
    """An actor, [B, C, H, W] -> [B, O]."""

    def __init__(
        self,
        obs_shape: Sequence[int],
        convs: Sequence[Conv],
        hidden: Sequence[int],
        num_outputs: int,
        *,
        activation: Activation,
        squashes: bool,
    ) -> None:
        super().__init__(obs_shape, convs, hidden, activation=activation)
        self.head = nn.Linear(hidden[-1], num_outputs)
        self._squashes = squashes

    def forward(self, obs: Tensor) -> Tensor:
        raw_BO: Tensor = self.head(self.features(obs))
        return raw_BO.tanh() if self._squashes else raw_BO


class ImageCritics(nn.Module):
    """Several critics on shared convolutions, [B, C, H, W] and [B, A] -> [B, E].

    The first hidden layer is shared; its output is joined with the action.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        convs: Sequence[Conv],
        hidden: Sequence[int],
        *,
        num_actions: int,
        num_critics: int,
        activation: Activation,
    ) -> None:
        super().__init__()
        first, *rest = hidden
        self.encoder = Torso(obs_shape, convs, (first,), activation=activation)
        sizes = (first + num_actions, *(rest or (first,)))
        self.critics = nn.ModuleList(
            Branch(sizes, 1, activation=activation) for _ in range(num_critics)
        )

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        x_BI = torch.cat((self.encoder(obs), action), dim=1)
        return torch.cat([critic(x_BI) for critic in self.critics], dim=1)
