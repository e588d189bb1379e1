"""Checks of the values that a vector environment returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from ding_lite.errors import EnvError
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.envs.checks.faults import raising_env_errors
from ding_lite.rl.envs.checks.masks import choice_sizes, flags_of, has_legal
from ding_lite.rl.spec import EnvSpec


def check_batch(
    name: str,
    what: str,
    value: Any,  # noqa: ANN401
    *,
    shape: tuple[int, ...],
    kinds: str,
) -> NumpyArray:
    """Check an array that a vector environment returned, and return it.

    `kinds` are the accepted kinds of dtype, as `dtype.kind` abbreviates them.
    """
    with raising_env_errors(name, "step"):
        array = np.asarray(value)
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
