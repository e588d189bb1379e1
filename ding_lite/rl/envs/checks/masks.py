"""Action masks: which choices are legal; and checks of what a vector environment returns."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import MultiBinary, MultiDiscrete

from ding_lite.errors import EnvError
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.envs.checks.faults import RAISED, raising_env_errors
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


def check_batch(
    name: str,
    what: str,
    value: Any,  # noqa: ANN401
    *,
    shape: tuple[int, ...],
    kinds: str,
) -> NumpyArray:
    """Check an array that a vector environment returned, and return it.

    `kinds` are the accepted kinds of dtype, as `dtype.kind` abbreviates them. Flags ("b") may
    also be the numbers 0 and 1.
    """
    with raising_env_errors(name, "step"):
        array = np.asarray(value)
    if kinds == "b" and array.dtype.kind in "iu" and np.isin(array, (0, 1)).all():
        array = array.astype(np.bool_)
    if array.shape != shape or array.dtype.kind not in kinds:
        raise EnvError(
            f"{name} gave `{what}` of shape {array.shape} and dtype {array.dtype}; shape {shape} "
            f"and {'True or False' if kinds == 'b' else 'numbers'} were expected."
        )
    return array


def check_masks(
    name: str, info: dict[str, Any], *, spec: EnvSpec, matters_N: NumpyArray
) -> NumpyArray:
    """Check the action masks of a vector environment, and return them, [N, A] bool.

    Masks without a legal action become masks of all actions where no action follows (not
    `matters_N`), and raise elsewhere.
    """
    shape, given = (len(matters_N), spec.num_choices), info.get("action_mask")
    if isinstance(given, np.ndarray) and given.dtype == object:  # tuples that gymnasium has joined
        none = np.zeros(spec.num_choices, np.bool_)
        rows = [none if row is None else flags_of(row, spec.num_choices) for row in given]
        found_rows = [row for row in rows if row is not None]
        given = np.stack(found_rows) if found_rows and len(found_rows) == len(given) else given
    found = check_batch(name, "action_mask", given, shape=shape, kinds="biu")
    masks: NumpyArray = found.astype(np.bool_)
    is_empty_N = ~has_legal(masks, choice_sizes(spec))
    if (is_empty_N & matters_N).any():
        index = int(np.flatnonzero(is_empty_N & matters_N)[0])
        raise EnvError(
            f"{name} gave environment {index} an action mask without a legal action: "
            f"{masks[index].tolist()}. One must be legal until the episode has ended."
        )
    masks[is_empty_N] = True
    return masks
