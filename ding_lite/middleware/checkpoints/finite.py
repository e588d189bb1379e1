"""Refuse to save a policy with weights that are not finite."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ding_lite.errors import NonFiniteError
from ding_lite.nest import Path as TreePath, leaves, path_name


def check_finite(
    state: Mapping[str, Any],
    name: str,
    *,
    known: Collection[TreePath],
    train_iter: int,
    directory: Path,
) -> None:
    """Refuse to save a policy with weights that are no longer finite.

    `known` is the result of `not_finite` before the first update.
    """
    for path in not_finite(state):
        if path not in known:
            raise NonFiniteError(
                f"{path_name(path, name)} is no longer finite after update "
                f"{train_iter:,}, so the policy was not saved; what "
                f"{directory} holds is the last good one. Lower the learning rate."
            )


def not_finite(state: Mapping[str, Any]) -> list[TreePath]:
    """Return the paths of arrays that contain NaN or infinity, such as a mask of attention."""
    return [path for path, leaf in leaves(state) if not _is_finite(leaf)]


def _is_finite(leaf: object) -> bool:
    if isinstance(leaf, Tensor):
        return not leaf.is_floating_point() or bool(leaf.detach().double().isfinite().all())
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind != "f" or bool(np.isfinite(leaf).all())
    return True  # a PyTorch scheduler may begin with the number infinity
