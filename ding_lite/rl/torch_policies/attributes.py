"""Tensors and numbers among a policy's attributes, which an exact resume needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.rl.host_or_device import as_tensor


class Attributes:
    """The plain attributes that `build` set, and the values of those that changed since then.

    Unchanged attributes follow from the config and are not saved. So a policy that a mutation makes
    with another config takes over only learned values.
    """

    def __init__(self, policy: object, names: set[str]) -> None:
        self._policy = policy
        self._built = {
            n: _copied(v) for n, v in vars(policy).items() if n in names and _is_plain(v)
        }

    def changed(self) -> dict[str, Any]:
        """Copy the values that changed to the CPU."""
        now = {name: getattr(self._policy, name, None) for name in self._built}
        return {n: _saved(v) for n, v in now.items() if not _is_same(v, self._built[n])}

    def load(self, changed: Mapping[str, Any]) -> None:
        """Set the attributes that `changed` returned, and reset the others to `build`'s values."""
        for name, built in self._built.items():
            value = changed.get(name, built)
            if isinstance(built, Tensor):
                value = as_tensor(value).to(built.device)
            setattr(self._policy, name, _copied(value))


def _is_plain(value: object) -> bool:
    is_tensor = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
    return is_tensor or isinstance(value, bool | int | float)


def _copied(value: Any) -> Any:  # noqa: ANN401 - a tensor or a number
    return value.detach().clone() if isinstance(value, Tensor) else value


def _saved(value: Any) -> Any:  # noqa: ANN401 - a tensor or a number
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _is_same(value: Any, built: Any) -> bool:  # noqa: ANN401 - tensors or numbers
    if isinstance(value, Tensor) and isinstance(built, Tensor):
        return value.dtype == built.dtype and torch.equal(value, built)
    return type(value) is type(built) and value == built
