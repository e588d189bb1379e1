"""A module that maps observations to a value per action, with gradients by autograd.

For vectors on a CPU this package has a written-out network with the same protocol, which takes less
time for small layers. Modules get observations as the environment returns them: bytes are not
scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.host_or_device import as_tensor, placed
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.flat_module import FlatModule


class RecordedQNetwork:
    """A module that maps observations to a value per action, as a `QNetwork`.

    `see` maps packed observations to the module's input; None passes observations unchanged.
    """

    def __init__(
        self,
        flat: FlatModule,
        random: TorchRandom | None = None,
        *,
        see: Callable[[Tensor], Any] | None = None,
    ) -> None:
        self._see = see
        self.flat = flat
        self.weights, self.grads = flat.weights, flat.grads
        self._device = flat.weights.flat.device
        self._random = random

    @property
    def module(self) -> nn.Module:
        return self.flat.module

    def forward(self, obs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._values(self.flat.run, obs, is_training=False)

    def forward_pair(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        next_q_BA = self.forward(next_obs)
        q_BA, saved = self.forward_saving(obs)
        return q_BA, saved, next_q_BA

    def forward_saving(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            q_BA = self._values(self.flat.run, obs, is_training=True)
        return q_BA.detach(), q_BA

    def backward(self, saved: Tensor, grad_BA: Tensor) -> None:
        self.flat.zero_grad()
        torch.autograd.backward([saved], [grad_BA.to(self._device)])

    def values(self, obs: NumpyArray) -> FloatArray:
        with torch.no_grad():  # not compiled, as N changes between calls
            values = self._values(self.flat.module, as_tensor(obs), is_training=False)
        values_NA: FloatArray = values.cpu().numpy()
        return values_NA

    def snapshot(self) -> dict[str, Tensor]:
        return self.flat.snapshot()

    def load(self, tensors: Mapping[str, Any]) -> None:
        self.flat.load(tensors)

    def copy_buffers(self, leader: Self) -> None:
        self.flat.copy_buffers(leader.flat)

    def _values(self, module: Callable[[Any], Tensor], obs: Tensor, *, is_training: bool) -> Tensor:
        self.flat.train(is_training)
        obs = placed(obs, self._device)
        with nullcontext() if self._random is None else self._random:
            return module(obs if self._see is None else self._see(obs))
