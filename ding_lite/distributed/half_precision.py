"""Weights in 16 bits a number: half the bytes, and about three digits of each."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class HalfPrecision:
    """Shortens 32-bit numbers, time after time into the same memory.

    Fresh memory would cost more than the numbers: the kernel clears each page of it. What is
    returned holds until the next call.

    Example:
        >>> to_half = HalfPrecision()
        >>> to_half({"w": torch.ones(2), "n": torch.tensor([3])})
        {'w': tensor([1., 1.], dtype=torch.float16), 'n': tensor([3])}
    """

    def __init__(self) -> None:
        """Start without memory."""
        self._buffers: dict[str, Tensor] = {}

    def __call__(
        self, weights: Mapping[str, Tensor], *, but: tuple[str, ...] = ()
    ) -> dict[str, Tensor]:
        """Return the same tensors on the CPU, those of 32-bit numbers shortened.

        Args:
            weights: Tensors by name, on any device.
            but: What the names of those begin with that stay as they are.
        """
        return {
            name: tensor.cpu()
            if tensor.dtype is not torch.float32 or name.startswith(but)
            else self._shortened(name, tensor)
            for name, tensor in weights.items()
        }

    def _shortened(self, name: str, tensor: Tensor) -> Tensor:
        half = self._buffers.get(name)
        if half is None or half.shape != tensor.shape:
            half = self._buffers[name] = torch.empty(tensor.shape, dtype=torch.float16)
        return half.copy_(tensor.detach())
