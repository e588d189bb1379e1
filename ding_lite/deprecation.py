"""Deprecated aliases of renamed public names and arguments."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ding_lite.errors import did_you_mean

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


def renamed(module: str, **names: str) -> Callable[[str], Any]:
    """Make a module's `__getattr__` that returns renamed objects by their old names.

    Each use of an old name warns. Old names stay for one release.

    Example:
        >>> __getattr__ = renamed("ding_lite.rl", Unroll="Rollout")
    """

    def _getattr(name: str) -> Any:  # noqa: ANN401
        if name not in names:
            meant = did_you_mean(name, sys.modules[module].__all__)
            raise AttributeError(f"module {module!r} has no attribute {name!r}.{meant}")
        warnings.warn(
            f"`{module}.{name}` is now `{module}.{names[name]}`. The old name goes with the next "
            f"release: use the new one.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(module), names[name])

    return _getattr


def renamed_argument(
    former: str, present: str
) -> Callable[[Callable[ParamsT, ResultT]], Callable[ParamsT, ResultT]]:
    """Let a function also take an argument by its former name, with a warning."""

    def taking_both(fn: Callable[ParamsT, ResultT]) -> Callable[ParamsT, ResultT]:
        @wraps(fn)
        def call(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
            if former in kwargs:
                warnings.warn(
                    f"`{former}` of `{fn.__name__}` is now `{present}`. The old name goes with the "
                    f"next release: use the new one.",
                    DeprecationWarning,
                    stacklevel=2,
                )
                kwargs[present] = kwargs.pop(former)
            return fn(*args, **kwargs)

        return call

    return taking_both
