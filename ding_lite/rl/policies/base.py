"""Helpers of all policies: devices, threads, action spaces and checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from ding_lite.errors import CheckpointError, ConfigError, ShapeError, did_you_mean
from ding_lite.rl.batch import Array, FloatArray, NumpyArray
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import Settings, finite, positive


def limit_torch_threads() -> None:
    """Set PyTorch's threads in this process: one, or DING_LITE_TORCH_THREADS.

    Handing the parts of a small matrix to several threads takes longer than multiplying it,
    and processes beside this one need the cores. 0 leaves PyTorch's own choice.
    """
    wanted = Settings.from_environ().torch_threads
    if wanted and torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)


def step_size(**named: float | None) -> list[str]:
    """List the step sizes that are not above 0 and finite; None is skipped."""
    given = {name: value for name, value in named.items() if value is not None}
    return positive(**given) or finite(**given)


def usable_device(device: str | torch.device) -> torch.device:
    """Return a device of this machine.

    Raises:
        ConfigError: If there is none of that name here.
    """
    try:
        return torch.zeros(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:  # each of its own
        raise ConfigError(
            f"`device` is {device!r}, which cannot be used here: {str(error).splitlines()[0]} "
            f'Use "cpu", or a PyTorch that was built for it.'
        ) from error


def discrete_actions(spec: EnvSpec, *, policy: str) -> int:
    """Return the number of discrete actions.

    Raises:
        ConfigError: If the environment's actions are continuous.
    """
    if spec.num_actions is None:
        raise ConfigError(
            f"{policy} chooses among a number of actions, but {spec.env_id} has the action space "
            f"{spec.action_space}. Take an environment with Discrete actions."
        )
    return spec.num_actions


class BoxActions:
    """Scales between a network's outputs, -1 to 1, and the actions of an environment.

    Args:
        spec: The environment's.
        policy: The name of the policy, for errors.

    Raises:
        ConfigError: If actions are discrete, or unbounded.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> box = BoxActions(make_envs("Pendulum-v1", 1).spec, policy="DDPG")
        >>> box.from_unit(np.array([[-1.0], [0.5]], dtype=np.float32)).tolist()
        [[-2.0], [1.0]]
    """

    def __init__(self, spec: EnvSpec, *, policy: str) -> None:
        """Read the bounds."""
        space = spec.action_space
        if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
            raise ConfigError(
                f"{policy} gives numbers within bounds, but {spec.env_id} has the action space "
                f"{space}. Take an environment with Box actions of floats, or a policy for "
                f"choices such as DQN."
            )
        if not space.is_bounded():
            raise ConfigError(
                f"{policy} scales its actions to their bounds, but those of {spec.env_id} are "
                f"{space.low.tolist()} to {space.high.tolist()}. Give it finite ones: "
                f"`make_envs(..., wrappers=[...])` with gymnasium's `RescaleAction` or your own."
            )
        self.size = int(np.prod(space.shape))
        """The dimension of an action."""
        low_A, high_A = (x.astype(np.float64).ravel() for x in (space.low, space.high))
        self._shape = space.shape
        self._low_A, self._high_A = low_A.astype(np.float32), high_A.astype(np.float32)
        self._middle_A = (0.5 * low_A + 0.5 * high_A).astype(np.float32)
        half_A = 0.5 * high_A - 0.5 * low_A
        self._half_A = half_A.astype(np.float32)
        # Where both bounds are the same number, the unit action is 0.
        self._per_half_A = np.divide(1.0, half_A, out=np.zeros_like(half_A), where=half_A > 0.0)
        self._per_half_A = self._per_half_A.astype(np.float32)

    def from_unit(self, unit_NA: FloatArray) -> FloatArray:
        """Turn numbers from -1 to 1 into actions, [N, ...], none of them out of bounds."""
        action_NA = self._middle_A + self._half_A * unit_NA
        np.clip(action_NA, self._low_A, self._high_A, out=action_NA)
        return action_NA.reshape(-1, *self._shape)

    def to_unit(self, action: NumpyArray) -> FloatArray:
        """Turn actions, [B, ...], into numbers from -1 to 1, [B, A]."""
        action_BA = np.asarray(action, dtype=np.float32).reshape(len(action), self.size)
        unit_BA: FloatArray = action_BA - self._middle_A
        unit_BA *= self._per_half_A
        return unit_BA


def check_obs(obs: Array, spec: EnvSpec) -> None:
    """Raise unless observations have the shape [N, ...] and the type of the spec.

    Raises:
        ShapeError: If the shape is not [N, ...] with the spec's shape behind the N, or they are
            floats where the spec says bytes, which may be scaled already or not.
    """
    if obs.shape[1:] != spec.obs_shape:
        raise ShapeError(
            f"`obs` has shape {tuple(obs.shape)}; any number of observations of {spec.env_id} "
            f"has the shape (N, {', '.join(map(str, spec.obs_shape))})."
        )
    if spec.obs_dtype is np.uint8 and obs.dtype not in (np.uint8, torch.uint8):
        raise ShapeError(
            f"`obs` has the type {obs.dtype}; observations of {spec.env_id} are bytes (uint8), as "
            f"`Envs` hands them on. They are scaled within the network."
        )


def check_state_keys(state: Mapping[str, Any], expected: set[str], *, policy: str) -> None:
    """Raise if a state is of another kind or version of policy.

    Raises:
        CheckpointError: If a key is missing or unknown.
    """
    missing, unknown = expected - state.keys(), state.keys() - expected
    if missing or unknown:
        hint = "".join(did_you_mean(str(key), expected) for key in sorted(unknown)[:1])
        raise CheckpointError(
            f"This is no state of a {policy}: missing {sorted(missing) or 'nothing'}, "
            f"unknown {sorted(unknown) or 'nothing'}.{hint}"
        )
