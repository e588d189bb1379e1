"""Checks and conversions of the observations and actions of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl.batch import Array, NumpyArray, to_numpy
from ding_lite.rl.formulas.distributions import BoxUnits
from ding_lite.rl.host_or_device import CPU
from ding_lite.rl.spec import EnvSpec

_OF_SEVERAL = "PPO, A2C or IMPALA, which make several choices at once"


def discrete_actions(spec: EnvSpec, *, policy: str) -> int:
    if spec.num_actions is None:
        several = isinstance(spec.action_space, MultiDiscrete | MultiBinary)
        advice = (
            f"Take {_OF_SEVERAL}"
            if several
            else "Take SAC or TD3, which are for continuous actions, or PPO, which is for both"
            if cast(Box, spec.action_space).is_bounded()
            else "Take PPO, A2C or IMPALA, which need no bounds"
        )
        raise ConfigError(
            f"{policy} is for Discrete actions, but {spec.env_id} has the action space "
            f"{spec.action_space}. {advice}."
        )
    return spec.num_actions


class BoxActions(BoxUnits):
    """Scales between a network's outputs, -1 to 1, and the actions of an environment."""

    def __init__(self, spec: EnvSpec, *, policy: str, device: torch.device = CPU) -> None:
        space = spec.action_space
        if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
            advice = "DQN, which is for Discrete actions, or PPO, which is for both"
            if not isinstance(space, Discrete):
                advice = "an environment with Box actions of floats"
            several = isinstance(space, MultiDiscrete | MultiBinary)
            raise ConfigError(
                f"{policy} is for continuous actions, but {spec.env_id} has the action space "
                f"{space}. Take {_OF_SEVERAL if several else advice}."
            )
        super().__init__(space, device=device)
        if not np.isfinite([self.low, self.high]).all():
            raise ConfigError(
                f"{policy} scales its actions to their bounds, but those of {spec.env_id} are "
                f"{space.low.tolist()} to {space.high.tolist()}. Take PPO, A2C or IMPALA, which "
                f"need none, or give it finite ones with gymnasium's `TransformAction(env, lambda "
                f"action: action, Box(-1, 1, shape))`: make_envs(..., wrappers=[...])."
            )
        if (is_fixed := self.low >= self.high).any():
            fixed = np.flatnonzero(is_fixed)
            places = (fixed - np.arange(len(fixed))).tolist()  # among the numbers that are left
            low, high = self.low[~is_fixed].tolist(), self.high[~is_fixed].tolist()
            raise ConfigError(
                f"{policy} learns the values of all numbers of an action, and some of "
                f"{spec.env_id} can have one value only: {space.low.tolist()} to "
                f"{space.high.tolist()}. Take PPO, A2C or IMPALA, or leave these numbers out with "
                f"gymnasium's `TransformAction(env, lambda action: np.insert(action, {places}, "
                f"{self.low[fixed].tolist()}), Box(np.float32({low}), np.float32({high})))`: "
                f"make_envs(..., wrappers=[...])."
            )
        self.size = len(self.unit_D)


def packed(obs: Any, spec: EnvSpec) -> NumpyArray:  # noqa: ANN401 - a tree, or an array
    """Return observations as one array: a tree is packed, an array is unchanged."""
    if obs.__class__ is np.ndarray:  # the usual case; `isinstance` is slower
        return cast(NumpyArray, obs)
    if isinstance(obs, Mapping | tuple):
        return spec.pack(obs)
    return np.asarray(to_numpy(obs))


def check_obs(obs: Array, spec: EnvSpec) -> None:
    if obs.shape[1:] != spec.obs_shape:
        hint = "" if spec.packing is None else " Packed: `spec.pack` makes them of their parts."
        if obs.shape == spec.obs_shape:
            hint = " A single one is given as `obs[None]`."
        elif tuple(obs.shape) in (spec.obs_space.shape, (1, *(spec.obs_space.shape or ()))):
            hint = " `policy.predict(obs)` takes one as the environment returns it."
        raise ShapeError(
            f"`obs` has shape {tuple(obs.shape)}; any number of observations of {spec.env_id} "
            f"has the shape (N, {', '.join(map(str, spec.obs_shape))}).{hint}"
        )
    if spec.obs_dtype is np.uint8 and obs.dtype not in (np.uint8, torch.uint8):
        raise ShapeError(
            f"`obs` has the type {obs.dtype}; observations of {spec.env_id} are bytes (uint8), as "
            f"`Envs` hands them on. They are scaled within the network."
        )


def has_illegal(action: NumpyArray, obs: NumpyArray, spec: EnvSpec) -> bool:
    """Return whether the action mask of an observation excludes its action."""
    mask_NA = spec.action_mask(obs)
    if mask_NA is None:
        return False
    space = spec.action_space
    sizes_K = space.nvec if isinstance(space, MultiDiscrete) else np.array([spec.num_choices])
    chosen_NK = action.reshape(len(action), -1) + sizes_K.cumsum() - sizes_K
    # `Envs.step` names actions out of range.
    chosen_NK = chosen_NK.clip(0, spec.num_choices - 1)
    return not np.take_along_axis(mask_NA, chosen_NK, axis=1).all()


def check_choices(action_B: Array, num_actions: int) -> None:
    """Raise unless the actions of a batch are numbers from 0 to `num_actions` - 1."""
    found = to_numpy(action_B)
    if found.dtype.kind not in "iu":
        raise ShapeError(f"`action` is an array of {found.dtype}; whole numbers were expected.")
    found = found.astype(np.int64, copy=False)
    if found.size and found.view(np.uint64).max() >= num_actions:  # negative ones are the largest
        raise ShapeError(
            f"`action` has numbers from {found.min()} to {found.max()}; 0 to {num_actions - 1} was "
            f"expected. A space that starts at another number has actions from 0 on here."
        )
