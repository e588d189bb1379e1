"""Conversion of observations into batches, one form for each kind of space.

A `Form` writes an observation into a row of a batch: a vector unchanged, a Discrete number as a
one-hot vector, an image with its channels first, several parts packed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

from ding_lite.errors import ConfigError
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.packing import Leaf, LeafSpace, ObsSpace, has_channels_last, leaf_spaces
from ding_lite.rl.spec import EnvSpec


class Form:
    """Writes the observations of a space into a batch."""

    def __init__(self, spec: EnvSpec) -> None:
        self.frame_shape = spec.frame_shape
        self.dtype = np.dtype(spec.obs_dtype)
        self._packing = spec.packing
        space = spec.obs_space
        self._leaf = Leaf((), cast(LeafSpace, space))
        self._start = int(space.start) if isinstance(space, Discrete) else None
        shape = space.shape if isinstance(space, Box) else ()
        self._is_channels_last = len(shape) == 3 and has_channels_last(shape)
        is_moved = self._is_channels_last and shape[-1] > 1
        is_joined = bool(shape) and self._packing is None and not is_moved
        self._joined_shape = (-1, *shape[1:]) if is_joined else None
        """The shape of environments' observations joined along their first axis; None if rows are
        written one by one."""

    def empty(self, num_rows: int) -> NumpyArray:
        return np.empty((num_rows, *self.frame_shape), dtype=self.dtype)

    def batch(self, raw_N: Any) -> NumpyArray:  # noqa: ANN401 - an array, or a tree of them
        """Convert the observations of a vector environment, [N, ...], into a new batch."""
        if self._packing is not None:
            return self._packing.pack(raw_N)
        return np.array(self._leaf.encode(raw_N), dtype=self.dtype, order="C")

    def write(self, rows: NumpyArray, raws: Sequence[Any]) -> None:
        """Write the observations of several environments into rows of `empty`."""
        if self._joined_shape is None:
            for row, raw in zip(rows, raws, strict=True):
                self.write_row(row, raw)
        else:
            np.concatenate(raws, out=rows.reshape(self._joined_shape), casting="unsafe")

    def write_row(self, row: NumpyArray, raw: Any) -> None:  # noqa: ANN401 - of the space
        if self._packing is not None:
            self._packing.write_row(row, raw)
        elif self._start is not None:
            row[...] = 0
            row[int(raw) - self._start] = 1
        elif self._is_channels_last:
            row.transpose(1, 2, 0)[...] = raw
        else:
            row[...] = raw

    def write_masks(self, rows: NumpyArray, mask: NumpyArray) -> None:
        rows[..., self.frame_shape[0] - mask.shape[-1] :] = mask


def supported_obs_space(env_id: str, space: Space[Any]) -> ObsSpace:
    parts = list(leaf_spaces(space))
    for keys, part in parts:
        is_box = isinstance(part, Box) and 1 <= len(part.shape) <= 3
        is_box = is_box or (isinstance(part, Box) and bool(keys) and not part.shape)
        if is_box or isinstance(part, Discrete | MultiDiscrete | MultiBinary):
            continue
        if isinstance(part, Box):
            advice = "gymnasium.wrappers.ReshapeObservation gives it another shape"
        elif type(part).__name__ == "OneOf":
            advice = "gymnasium.wrappers.FlattenObservation makes one vector of it"
        else:
            advice = "gymnasium.wrappers.TransformObservation makes numbers of it"
        where = f"; its part `{Leaf(keys, part).name}` is {part}" if keys else ""
        raise ConfigError(
            f"{env_id} has the observation space {space}{where}; vectors and images (Box with one "
            f"to three axes), numbers of finitely many (Discrete, MultiDiscrete, MultiBinary), and "
            f"Dict and Tuple of them are supported. {advice}: make_envs(..., wrappers=[...])."
        )
    if not any(math.prod(part.shape or ()) for _, part in parts):
        raise ConfigError(
            f"{env_id} has the observation space {space}, which has no numbers; one or more were "
            f"expected. Show at least one number."
        )
    return cast(ObsSpace, space)


def supported_action_space(
    env_id: str, space: Space[Any]
) -> Discrete | Box | MultiDiscrete | MultiBinary:
    if isinstance(space, Discrete):
        return space
    is_vector = isinstance(space, Space) and len(space.shape or ()) == 1 and space.shape != (0,)
    if isinstance(space, MultiDiscrete | MultiBinary) and is_vector:
        return space
    if isinstance(space, Box) and is_vector:
        if np.issubdtype(space.dtype, np.floating):
            return space
        raise ConfigError(
            f"{env_id} has the action space {space} of the type {space.dtype}; a Box of floats was "
            f"expected. Rounded numbers would be learned from as they were before the rounding. "
            f"Choices are MultiDiscrete: give it that space with a wrapper of your own, a "
            f"gymnasium.ActionWrapper: make_envs(..., wrappers=[...])."
        )
    advice = "Give it one of them with a wrapper of your own, a gymnasium.ActionWrapper"
    if isinstance(space, Box) and 0 not in space.shape:
        advice = (
            f"gymnasium makes a vector of it by `TransformAction(env, lambda action: "
            f"action.reshape({space.shape}), flatten_space(env.action_space))`"
        )
    raise ConfigError(
        f"{env_id} has the action space {space}; a choice (Discrete), several choices "
        f"(MultiDiscrete, MultiBinary) and vectors of numbers (Box with one axis, not empty) are "
        f"supported. {advice}: make_envs(..., wrappers=[...])."
    )
