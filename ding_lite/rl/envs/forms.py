"""Conversion of observations into batches, one form for each kind of space.

A `Form` writes an observation into a row of a batch: a vector as it is, a Discrete number as a
one-hot vector, an image with its channels first. `FrameStack` then stacks frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from ding_lite.errors import ConfigError
from ding_lite.rl.batch import BoolArray, NumpyArray
from ding_lite.rl.spec import EnvSpec, has_channels_last

WriteRow: TypeAlias = Callable[[NumpyArray, Any], None]

_SEVERAL_PARTS = {"Dict", "Tuple", "MultiDiscrete", "MultiBinary", "OneOf"}


class Form:
    """Writes the observations of a space into a batch.

    Args:
        spec: The environment's.
    """

    def __init__(self, spec: EnvSpec) -> None:
        """Choose the function for the space."""
        self.frame_shape = spec.frame_shape
        self.dtype = np.dtype(spec.obs_dtype)
        space = spec.obs_space
        self._start = int(space.start) if isinstance(space, Discrete) else None
        shape = () if isinstance(space, Discrete) else space.shape
        self._is_channels_last = len(shape) == 3 and has_channels_last(shape)
        self.write_row: WriteRow = self._choose_write_row()
        """Write an environment's observation into a row of `empty`."""

    def empty(self, num_rows: int) -> NumpyArray:
        """Allocate a batch of observations, [N, ...]."""
        return np.empty((num_rows, *self.frame_shape), dtype=self.dtype)

    def batch(self, raw_N: NumpyArray) -> NumpyArray:
        """Convert the observations of a vector environment, [N, ...], into a batch of its own."""
        if self._start is not None:
            frames = np.zeros((len(raw_N), *self.frame_shape), dtype=self.dtype)
            frames[np.arange(len(raw_N)), raw_N - self._start] = 1
            return frames
        if self._is_channels_last:
            raw_N = np.moveaxis(raw_N, -1, 1)
        return np.array(raw_N, dtype=self.dtype, order="C").reshape(len(raw_N), *self.frame_shape)

    def _choose_write_row(self) -> WriteRow:
        start = self._start

        def write(row: NumpyArray, raw: NumpyArray) -> None:
            row[...] = raw

        def write_one_hot(row: NumpyArray, raw: int) -> None:
            row[...] = 0
            row[int(raw) - start if start else int(raw)] = 1

        def write_channels_first(row: NumpyArray, raw: NumpyArray) -> None:
            row.transpose(1, 2, 0)[...] = raw

        if start is not None:
            return write_one_hot
        return write_channels_first if self._is_channels_last else write


class FrameStack:
    """Stacks the newest observations of each environment, the oldest first.

    Args:
        num_frames: How many; at the beginning of an episode the first one is repeated.
        spec: The environment's.
        num_envs: How many environments.
    """

    def __init__(self, num_frames: int, spec: EnvSpec, num_envs: int) -> None:
        """Allocate memory for the newest stack."""
        self._num_frames = num_frames
        self._size = spec.frame_shape[0]
        self.stacks = np.zeros((num_envs, *spec.obs_shape), dtype=spec.obs_dtype)
        """The stacks that were returned last; the caller shares their memory."""

    def push(self, frames: NumpyArray) -> NumpyArray:
        """Add the next frame of each environment; return the new stacks, freshly allocated."""
        self.stacks = np.concatenate((self.stacks[:, self._size :], frames), axis=1)
        return self.stacks

    def restart(self, done_N: BoolArray, frames: NumpyArray) -> NumpyArray:
        """Restart the stacks of the mask; return the new stacks, freshly allocated.

        Args:
            done_N: The environments in which episodes begin.
            frames: The first frames there, one for each True of the mask.
        """
        self.stacks = self.stacks.copy()
        repeats = (1, self._num_frames) + (1,) * (frames.ndim - 2)
        self.stacks[done_N] = np.tile(frames, repeats)
        return self.stacks


def supported_obs_space(env_id: str, space: Space[Any]) -> Box | Discrete:
    """Return the space if its observations are supported.

    Raises:
        ConfigError: If it is none of vectors, images and Discrete numbers.
    """
    if isinstance(space, Discrete):
        return space
    if isinstance(space, Box) and 1 <= len(space.shape) <= 3:
        return space
    if type(space).__name__ in _SEVERAL_PARTS:
        advice = "gymnasium.wrappers.FlattenObservation makes one vector of it"
    elif isinstance(space, Box):
        advice = "gymnasium.wrappers.ReshapeObservation gives it another shape"
    else:
        advice = "gymnasium.wrappers.TransformObservation makes numbers of it"
    raise ConfigError(
        f"{env_id} has the observation space {space}; vectors and images (Box with one to three "
        f"axes) and one number of many (Discrete) are supported. {advice}: "
        f"make_envs(..., wrappers=[...])."
    )


def supported_action_space(env_id: str, space: Space[Any]) -> Discrete | Box:
    """Return the space if its actions are supported.

    Raises:
        ConfigError: If it is neither Discrete nor a Box of floats.
    """
    if isinstance(space, Discrete) or (isinstance(space, Box) and len(space.shape) == 1):
        return space
    raise ConfigError(
        f"{env_id} has the action space {space}; a choice (Discrete) and vectors of numbers (Box "
        f"with one axis) are supported. Give it one of them with a wrapper of your own, a "
        f"gymnasium.ActionWrapper: make_envs(..., wrappers=[...])."
    )
