"""Weights in half precision: half the bytes, and about three digits of each number."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class HalfPrecision:
    """Converts 32-bit tensors to half precision, always into the same memory.

    Fresh memory would cost more than the conversion: the kernel clears each page of it. The
    returned tensors are valid until the next call.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def __call__(
        self, weights: Mapping[str, Tensor], *, but: tuple[str, ...] = ()
    ) -> dict[str, Tensor]:
        """Return the tensors on the CPU, in half precision unless a name begins as in `but`.

        A tensor with a number above 65,504, which would become infinite, is returned as it is.
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
        half.copy_(tensor.detach())
        overflows = half.numel() > 0 and any(map(math.isinf, half.aminmax()))
        return tensor.cpu() if overflows else half
