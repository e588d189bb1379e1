"""What policies have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ding_lite.errors import CheckpointError, ConfigError, ShapeError, did_you_mean
from ding_lite.rl.batch import Array
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import Settings


def limit_torch_threads() -> None:
    """Give PyTorch one thread in this process, or what DING_LITE_TORCH_THREADS says.

    Handing the parts of a small matrix to several threads takes longer than multiplying it,
    and processes beside this one need the cores. 0 leaves PyTorch's own choice.
    """
    wanted = Settings.from_environ().torch_threads
    if wanted and torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)


def discrete_actions(spec: EnvSpec, *, policy: str) -> int:
    """Return the number of actions, for a policy that can only choose among some.

    Raises:
        ConfigError: If the environment's actions are continuous.
    """
    if spec.num_actions is None:
        raise ConfigError(
            f"{policy} chooses among a number of actions, but {spec.env_id} has the action space "
            f"{spec.action_space}. Take an environment with Discrete actions."
        )
    return spec.num_actions


def check_obs(obs: Array, spec: EnvSpec) -> None:
    """Refuse observations of another environment, a single one, or bytes that became floats.

    Raises:
        ShapeError: If the shape is not [N, ...] with the spec's shape behind the N, or they are
            floats where the spec says bytes: nobody could tell whether these are scaled already.
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


def split_norm(
    weights: Mapping[str, Any], *, has_norm: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part what a `RunningNorm` has published (`norm.<name>`) from a network's weights.

    Raises:
        ShapeError: If there is none although the policy has one, or the other way round.
    """
    of_norm = {name[5:]: value for name, value in weights.items() if name.startswith("norm.")}
    if has_norm != bool(of_norm) or (has_norm and set(of_norm) != {"mean", "squares", "count"}):
        raise ShapeError(
            f"The weights to load are of a policy with `normalize_obs` {'on' if of_norm else 'off'}"
            f", and this one has it {'on' if has_norm else 'off'}. Make both alike."
        )
    others = {name: value for name, value in weights.items() if not name.startswith("norm.")}
    return of_norm, others


def check_state_keys(state: Mapping[str, Any], expected: set[str], *, policy: str) -> None:
    """Refuse a state that another kind or version of policy wrote.

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
