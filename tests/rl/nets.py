"""Networks as users write them, around layers that a test chooses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Joins(nn.Module):
    """Sees its inputs side by side, such as a critic of observations and actions."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *inputs: Tensor) -> Tensor:
        found: Tensor = self.net(torch.cat(inputs, dim=-1))
        return found


class Splits(Joins):
    """An actor-critic: the last output is the value, the others are the actor's."""

    def forward(self, *inputs: Tensor) -> Any:
        found = super().forward(*inputs)
        return found[:, :-1], found[:, -1]


class Leaky(nn.Module):
    """A network with memory: its state decays, and takes up observations.

    With a value it is an actor-critic, without it computes the values of actions.
    """

    def __init__(
        self, num_inputs: int = 4, num_outputs: int = 2, size: int = 5, *, has_value: bool = False
    ) -> None:
        super().__init__()
        self.state_size, self.has_value = size, has_value
        self.inner = nn.Linear(num_inputs + size, size)
        self.head = nn.Linear(size, num_outputs + has_value)

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        state = 0.5 * state + torch.tanh(self.inner(torch.cat((obs, state), dim=1)))
        found = self.head(state)
        return (found[:, :-1], found[:, -1], state) if self.has_value else (found, state)


class GrowingLeaky(Leaky):
    """A network of a user. New units come last, and are not read yet."""

    def grow(self, rng: np.random.Generator) -> nn.Module:
        size = self.state_size
        new = GrowingLeaky(size=size + int(rng.integers(1, 4)))
        new.inner.weight[:size, : 4 + size] = self.inner.weight
        new.inner.weight[:size, 4 + size :] = 0.0
        new.inner.bias[:size] = self.inner.bias
        new.head.weight[:, :size], new.head.weight[:, size:] = self.head.weight, 0.0
        new.head.bias.copy_(self.head.bias)
        return new
