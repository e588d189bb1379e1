"""Losses of errors with their slopes written out, for arrays and for tensors on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ding_lite.rl.host_or_device import AnyArray


def huber(error: AnyArray, weight: AnyArray = None) -> tuple[AnyArray, AnyArray]:
    """Compute the Huber loss: half the square up to 1, linear beyond (Huber 1964).

    Return the loss of each error, multiplied by its weight if given, and its slope.
    """
    plain = error.clip(-1.0, 1.0)
    slope = plain if weight is None else plain * weight
    return slope * (error - 0.5 * plain), slope


def squared(error: AnyArray, weight: AnyArray = None) -> tuple[AnyArray, AnyArray]:
    """Compute the squared error and its slope, in the form of `huber`."""
    weighted = error if weight is None else error * weight
    return weighted * error, 2.0 * weighted


Loss = Callable[..., tuple[AnyArray, AnyArray]]
"""Maps errors and weights to the loss of each error and its slope."""
LOSSES: Mapping[str, Loss] = MappingProxyType({"huber": huber, "mse": squared})
