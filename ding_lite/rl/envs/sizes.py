"""Checks that environments and env steps fit into memory, before it is allocated."""

from __future__ import annotations

import math

import numpy as np

from ding_lite.io.memory import check_fits
from ding_lite.rl.spec import EnvSpec

_COPIES_OF_OBS = 3
"""The copies of observations: before and after a step, and the arrays that environments write."""
_BYTES_OF_NATIVE = 1536
"""The minimum bytes of a member of an array program: random generator, seed, return and flags."""
_BYTES_OF_OBJECTS = 4096
"""The minimum bytes of an environment that is a Python object."""


def check_envs_fit(spec: EnvSpec, num_envs: int, *, is_native: bool, **option: int) -> None:
    """Raise if environments, or their stacks of frames, do not fit into memory.

    `option` names the setting of their number, for the message; `num_envs` by default.
    """
    frame_bytes = _bytes_of(spec.frame_shape, np.dtype(spec.obs_dtype))
    beside = _BYTES_OF_NATIVE if is_native else _BYTES_OF_OBJECTS
    what = f"Stepping {spec.env_id}"
    alone = num_envs * (_COPIES_OF_OBS * frame_bytes + beside)
    check_fits(alone, what=what, **(option or {"num_envs": num_envs}))
    stacked = alone + num_envs * _COPIES_OF_OBS * frame_bytes * (spec.frame_stack - 1)
    check_fits(stacked, what=what, frame_stack=spec.frame_stack)


def check_steps_fit(spec: EnvSpec, num_steps: int, **option: int) -> None:
    """Raise if the env steps of one collection do not fit into memory.

    `option` names the setting of their number, with its value, for the message.
    """
    of_obs = _bytes_of(spec.obs_shape, np.dtype(spec.obs_dtype))
    of_action = _bytes_of(spec.action_shape, np.dtype(spec.action_dtype))
    needed = num_steps * (2 * of_obs + of_action + 10)
    check_fits(needed, what=f"Collecting env steps of {spec.env_id}", **option)


def _bytes_of(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> int:
    return math.prod(shape) * dtype.itemsize
