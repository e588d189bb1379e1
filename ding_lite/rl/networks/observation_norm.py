"""Running normalisation of observations as a part of a policy's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import ConfigError, ShapeError, kind_of
from ding_lite.rl.host_or_device import CPU
from ding_lite.rl.networks.inputs import RunningNorm
from ding_lite.rl.spec import EnvSpec

_PREFIX = "norm."
_NAMES = {"mean", "squares", "count"}


def make_norm(
    spec: EnvSpec, *, normalize_obs: bool, device: torch.device = CPU
) -> RunningNorm | None:
    """Make the normalisation of observations, or None without `normalize_obs`."""
    if not normalize_obs:
        return None
    if spec.is_image:
        raise ConfigError(
            f"`normalize_obs` is on, but {spec.env_id} shows images, which are scaled to 0 to 1 "
            f"anyway. Leave it off."
        )
    packing = spec.packing
    if packing is None:
        return RunningNorm(spec.obs_shape[0], device=device)
    if packing.is_bytes or packing.has_images:
        raise ConfigError(
            f"`normalize_obs` is on, but a part of the observations of {spec.env_id} is of bytes "
            f"or an image, which are scaled to 0 to 1 anyway. Leave it off, or make vectors of "
            f"floats of them with a wrapper."
        )
    is_mask = np.zeros(packing.num_masked, dtype=np.bool_)
    only_I = np.concatenate((packing.is_normal(), is_mask))
    return RunningNorm(*packing.shape, only_I=only_I, device=device)


def with_norm(weights: Mapping[str, Tensor], norm: RunningNorm | None) -> dict[str, Tensor]:
    """Return a network's weights with the normalisation's statistics, as `norm.<name>`."""
    state = {} if norm is None else norm.state_dict()
    return {**weights, **{_PREFIX + name: value for name, value in state.items()}}


def read_norm(
    weights: Mapping[str, Any], spec: EnvSpec, like: RunningNorm | None
) -> tuple[RunningNorm | None, dict[str, Any]]:
    if not isinstance(weights, Mapping):
        raise ShapeError(
            f"The weights to load are {kind_of(weights)}; tensors by name were expected, as "
            f"`policy.weights()` returns them."
        )
    of_norm = {name[5:]: value for name, value in weights.items() if name.startswith(_PREFIX)}
    if bool(of_norm) != (like is not None):
        raise ShapeError(
            f"The weights to load are of a policy with `normalize_obs` {'on' if of_norm else 'off'}"
            f", and this one has it {'on' if like else 'off'}. Make both alike."
        )
    if of_norm and of_norm.keys() != _NAMES:
        odd = [_PREFIX + name for name in sorted(_NAMES ^ of_norm.keys())]
        raise ShapeError(f"Of the weights to load, {odd} is missing or is none of this policy.")
    norm = like and make_norm(spec, normalize_obs=True, device=like.device)
    if norm is not None:
        norm.load_state_dict(of_norm)
    return norm, {name: value for name, value in weights.items() if not name.startswith(_PREFIX)}
