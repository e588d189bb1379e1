"""Modules on flat weights with gradients by autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ding_lite.rl.batch import Array, FloatArray, NumpyArray
from ding_lite.rl.host_or_device import placed
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.flat_module import FlatModule


class Recorded:
    """Runs a module, and writes the gradient of its weights.

    The module learns in the mode of `Module.train`; all else is computed in that of `Module.eval`.
    Updates call the compiled function, if there is one. Actions do not, as the number of their
    observations changes.

    Args:
        flat: The module.
        unpack: Maps packed observations to the input of the module; None passes them unchanged.
        random: The stream that the module draws from; None if it draws nothing, or if the policy
            replaces the generators for a whole update.
        num_apart: The number of weights, at the end, for which `backward` writes no gradients.
    """

    def __init__(
        self,
        flat: FlatModule,
        *,
        unpack: Callable[[Tensor], Any] | None = None,
        random: TorchRandom | None = None,
        num_apart: int = 0,
    ) -> None:
        self.flat, self.module = flat, flat.module
        self.weights, self.grads = flat.weights, flat.grads
        self.snapshot, self.load = flat.snapshot, flat.load
        self.num_apart = num_apart
        self._device = flat.weights.flat.device
        self._unpack = unpack
        self._drawing: AbstractContextManager[None] = random or nullcontext()

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        return self.flat.buffers

    def _inputs(self, obs: Array) -> Any:  # noqa: ANN401 - a tensor, or a tree of them
        tensor = placed(obs, self._device)
        return tensor if self._unpack is None else self._unpack(tensor)

    def _infer(self, obs: Array, *more: Any) -> Any:  # noqa: ANN401 - of the module
        """Run the module for actions."""
        with torch.no_grad(), self._drawing:
            self.flat.train(False)  # another thread may learn before its turn is over
            return self.flat.module(self._inputs(obs), *more)

    def _estimate(self, obs: Array, *more: Any) -> Any:  # noqa: ANN401 - of the module
        """Run the module for the targets of an update."""
        with torch.no_grad(), self._drawing:
            self.flat.train(False)
            return self.flat.run(self._inputs(obs), *more)

    def _record(self, obs: Array, *more: Any) -> Any:  # noqa: ANN401 - of the module
        """Run the module for outputs that are learned from."""
        with torch.enable_grad(), self._drawing:
            self.flat.train(True)
            return self.flat.run(self._inputs(obs), *more)

    def _backward(self, outputs: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Write `grads`, given recorded outputs and their gradients."""
        self.flat.zero_grad(self.num_apart)
        torch.autograd.backward(outputs, grads)


class RecordedQNetwork(Recorded):
    """A module that maps observations to a value per action, as a `QNetwork`.

    For vectors on a CPU this package has a written-out network with the same protocol, which takes
    less time for small layers. Bytes are not scaled.
    """

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

    def copy_buffers(self, leader: Any) -> None:  # noqa: ANN401 - another of this class
        self.flat.copy_buffers(leader.flat)
