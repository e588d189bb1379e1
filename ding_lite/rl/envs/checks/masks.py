"""Action masks: which choices are legal, and whether each action has one."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import MultiBinary, MultiDiscrete

from ding_lite.errors import EnvError
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.envs.checks.faults import RAISED
from ding_lite.rl.spec import EnvSpec


def choice_sizes(spec: EnvSpec) -> list[int]:
    space = spec.action_space
    if isinstance(space, MultiBinary):
        return [2]
    return space.nvec.tolist() if isinstance(space, MultiDiscrete) else [spec.num_choices]


def has_legal(masks: NumpyArray, sizes: list[int]) -> NumpyArray:
    """Return whether masks, [..., A], allow a choice for each number of an action, [...]."""
    firsts = np.cumsum([0, *sizes[:-1]])
    return np.asarray(np.logical_or.reduceat(masks, firsts, axis=-1).all(axis=-1))


def flags_of(mask: Any, size: int) -> NumpyArray | None:  # noqa: ANN401
    """Return an action mask as flags, [A]; None if it is not a mask of that size."""
    try:
        parts = mask if isinstance(mask, tuple | list) else (mask,)
        array = np.concatenate([np.atleast_1d(part) for part in parts])
    except RAISED:
        return None
    return array.astype(np.bool_) if array.shape == (size,) and array.dtype.kind in "biuf" else None


def refuse_late_mask(name: str, info: dict[str, Any], spec: EnvSpec) -> None:
    """Raise if `step` returned an action mask and `reset` none: it would have no effect."""
    is_late = not spec.has_action_mask and info.get("action_mask") is not None
    if is_late and spec.num_choices:
        raise EnvError(
            f'{name} gave `info["action_mask"]` from `step`, and none from its first `reset`; '
            f"masks were expected from both, or from neither. Return one from `reset` too."
        )
