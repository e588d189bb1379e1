"""One set of formulas for numpy arrays on a CPU and for tensors on a device.

A call of numpy on a small batch takes a third of the time of PyTorch's, so on a CPU losses are
computed on numpy views of tensors. On a device the same lines compute on the tensors, without a
copy to the host: `xp = namespace(x)` is the module with the functions for `x`. Metrics are copied
to the host when they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import ConfigError
from ding_lite.rl.batch import Array, NumpyArray, to_numpy

CPU = torch.device("cpu")
Metrics = Mapping[str, float | NumpyArray]
"""The metrics of an update by name."""
AnyArray: TypeAlias = Any
"""An array on a CPU, a tensor on any other device: formulas compute on either."""
Number: TypeAlias = Any
"""A `float` on a CPU, a tensor of one number on any other device."""


def is_host(device: torch.device) -> bool:
    return device == CPU  # takes a third of the time of a look at its `type`


def usable_device(device: str | torch.device) -> torch.device:
    try:
        found = torch.zeros(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:  # each backend raises its own
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"`device` is {device!r}, which cannot be used here: {reason}. "
            f'Use "cpu", or a PyTorch that was built for it.'
        ) from error
    if found.type == "cuda":
        _start_backward(found)
    return found


@lru_cache
def _start_backward(device: torch.device) -> None:
    """Give the thread of backward passes on a GPU its CUDA context.

    PyTorch warns if the first operation there is a matrix product, as in updates of this package.
    """
    with torch.enable_grad():
        one = torch.ones(1, device=device, requires_grad=True)
        torch.autograd.backward(one * one)


def number(value: Any) -> Number:  # noqa: ANN401 - an array or a tensor of one number
    """Return one number for formulas: a `float`, or a tensor unchanged.

    A Python float does not change the precision of arrays and tensors, and computes faster than a
    numpy scalar.
    """
    return value if isinstance(value, Tensor) else float(value)


def namespace(values: Any) -> Any:  # noqa: ANN401 - two modules with functions of the same names
    """Return the module of functions for an array: `torch` for a tensor, else `numpy`."""
    return torch if isinstance(values, Tensor) else np


def floats(values: AnyArray) -> AnyArray:
    xp = namespace(values)
    return xp.asarray(values, dtype=xp.float32)


def zeros_like(values: AnyArray) -> AnyArray:
    """Return contiguous zeros of the same shape and type; `np.zeros_like` takes twice as long."""
    if isinstance(values, Tensor):
        return torch.zeros_like(values, memory_format=torch.contiguous_format)
    return np.zeros(values.shape, values.dtype)


def computable(tensor: Tensor) -> AnyArray:
    """Return a tensor as an operand of formulas: a numpy view on a CPU, else the tensor itself."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.numpy() if is_host(tensor.device) else tensor


def on(device: torch.device, values: Array) -> AnyArray:
    """Return values as operands of formulas together with a network's outputs on a device.

    Return an array on a CPU, else a tensor there; the host does not wait for a copy to the device.
    """
    if is_host(device):
        return to_numpy(values)
    return placed(values, device)


def placed(values: Array, device: torch.device) -> Tensor:
    """Return values as a tensor on a device. The host does not wait for a copy to it."""
    tensor = as_tensor(values)
    return tensor if tensor.device == device else tensor.to(device, non_blocking=True)


def as_tensor(values: Array) -> Tensor:
    """Return values as a tensor, in the same memory; a read-only array is copied."""
    if isinstance(values, Tensor):
        return values
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def nan_if(skip: Tensor | None, loss: Number) -> Number:
    """Return a loss, or NaN on a device if `skip` is 1.0 there, as the step was skipped."""
    return loss if skip is None else torch.where(skip > 0.0, torch.nan, cast(Tensor, loss))


def metrics_of(
    values: Mapping[str, Any], check: Callable[[float], None], **checks: Callable[[float], None]
) -> Metrics:
    """Return metrics as numbers and arrays; metrics of a device are copied when they are read.

    `check` gets the copied `loss`, and `checks` get further losses by name; they raise an error if
    the loss is not finite.
    """
    if Tensor in map(type, values.values()):
        return DeviceMetrics(values, check, **checks)
    return {k: v if isinstance(v, np.ndarray) else float(v) for k, v in values.items()}


class DeviceMetrics(Mapping[str, float | NumpyArray]):
    """Metrics on a device. Reading the first value copies all metrics, the single numbers at once.

    The checks are those of `metrics_of`.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        check: Callable[[float], None],
        **checks: Callable[[float], None],
    ) -> None:
        self._values = dict(values)
        self._checks = {"loss": check, **checks}
        self._fetched: dict[str, float | NumpyArray] | None = None

    def __getitem__(self, name: str) -> float | NumpyArray:
        """Return a metric; raise NonFiniteError if a loss was not finite: its step was skipped."""
        if name not in self._values:
            raise KeyError(name)
        if self._fetched is None:
            self._fetched = _fetch(self._values)
        for of_loss, check in self._checks.items():
            loss = self._fetched.get(of_loss)
            if isinstance(loss, float) and not math.isfinite(loss):
                check(loss)
        return self._fetched[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)})"


class Unread:
    """A number that is copied to the host when `float` is called on it."""

    def __init__(self, fetch: Callable[[], Any]) -> None:
        self._fetch = fetch

    def __float__(self) -> float:
        return float(self._fetch())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({float(self)})"


def unread(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metrics without copying them; metrics of a device become `Unread` numbers."""
    if not isinstance(metrics, DeviceMetrics):
        return metrics
    return {name: Unread(partial(metrics.__getitem__, name)) for name in metrics}


def _fetch(values: Mapping[str, Any]) -> dict[str, float | NumpyArray]:
    single = {n: v for n, v in values.items() if isinstance(v, Tensor) and v.dim() == 0}
    numbers = torch.stack([each.float() for each in single.values()]).tolist() if single else []
    found: dict[str, float | NumpyArray] = dict(zip(single, numbers, strict=True))
    for name, value in values.items():
        if name not in single:
            found[name] = value.cpu().numpy() if isinstance(value, Tensor) else value
    return {name: found[name] for name in values}
