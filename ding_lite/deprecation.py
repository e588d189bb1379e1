"""Deprecated aliases of renamed public names."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any


def renamed(module: str, **names: str) -> Callable[[str], Any]:
    """Make a module's `__getattr__` that returns renamed objects by their old names.

    Each use of an old name warns. Old names stay for one release.

    Example:
        >>> __getattr__ = renamed("ding_lite.rl", Unroll="Rollout")
    """

    def _getattr(name: str) -> Any:  # noqa: ANN401
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"`{module}.{name}` is now `{module}.{names[name]}`. The old name goes with the next "
            f"release: use the new one.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(module), names[name])

    return _getattr
