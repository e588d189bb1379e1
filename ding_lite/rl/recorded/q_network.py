"""A module that maps observations to a value per action, with gradients by autograd.

For vectors on a CPU this package has a written-out network with the same protocol, which takes less
time for small layers. Modules get observations as the environment returns them: bytes are not
scaled.
"""

from __future__ import annotations

from typing import Self

from torch import Tensor

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.recorded.network import Recorded


class RecordedQNetwork(Recorded):
    """A module that maps observations to a value per action, as a `QNetwork`."""

    def forward(self, obs: Tensor) -> Tensor:
        q_BA: Tensor = self._estimate(obs)
        return q_BA

    def forward_pair(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        next_q_BA = self.forward(next_obs)
        q_BA, saved = self.forward_saving(obs)
        return q_BA, saved, next_q_BA

    def forward_saving(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        q_BA: Tensor = self._record(obs)
        return q_BA.detach(), q_BA

    def backward(self, saved: Tensor, grad_BA: Tensor) -> None:
        self._backward([saved], [grad_BA.to(self._device)])

    def values(self, obs: NumpyArray) -> FloatArray:
        values_NA: FloatArray = self._infer(obs).cpu().numpy()
        return values_NA

    def copy_buffers(self, leader: Self) -> None:
        self.flat.copy_buffers(leader.flat)
