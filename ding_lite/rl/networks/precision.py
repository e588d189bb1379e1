"""The precision of matrix products and convolutions, which holds for the whole process.

PyTorch has a switch for matrix products, `torch.set_float32_matmul_precision`, and none for the
convolutions of all devices. Those of this package's networks follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ding_lite.rl.host_or_device import is_host
from ding_lite.rl.packing import as_floats

Precision: TypeAlias = Literal["float32", "bfloat16"]

_INSTRUCTIONS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
"""Functions of `torch.cpu`, which has no public ones in all versions."""


@contextmanager
def computing_in(precision: Precision | None) -> Iterator[None]:
    """Compute matrix products and convolutions in a precision; None changes nothing."""
    before = _of_products()
    wanted = {None: before, "float32": "highest", "bfloat16": "medium"}[precision]
    if wanted == before:  # setting it again would override the newer, finer switches
        yield
        return
    torch.set_float32_matmul_precision(wanted)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def convolved(convolutions: Callable[[Tensor], Tensor], obs: Tensor) -> Tensor:
    """Compute the features of images, [B, C, H, W] -> [B, I]; bytes are scaled.

    On a CPU, and in bfloat16, the channels of a pixel lie next to each other, with which a backward
    pass takes two thirds of the time. The features have the usual order.
    """
    device, in_bfloat16 = obs.device, _convolves_in_bfloat16(obs.device)
    if in_bfloat16 or is_host(device):  # a permutation, as `vmap` knows no memory formats
        obs = obs.movedim(1, -1).contiguous().movedim(-1, 1)
    with _bfloat16_on(device) if in_bfloat16 else nullcontext():
        maps = convolutions(as_floats(obs))
    return maps.flatten(1).float()


def _convolves_in_bfloat16(device: torch.device) -> bool:
    return _of_products() == "medium" and _has_bfloat16(device.type)


def _bfloat16_on(device: torch.device) -> AbstractContextManager[object]:
    """Compute in bfloat16, without a cache of weights, which captured updates must read anew."""
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


@cache
def _has_bfloat16(device_type: str) -> bool:
    """Return whether a device has instructions for it; emulated, it takes longer than float32."""
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    asks = (getattr(torch.cpu, name, None) for name in _INSTRUCTIONS)
    return device_type == "cpu" and any(ask() for ask in asks if ask is not None)


def _of_products() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # a program has set it by the newer, finer switches
        return "highest"
