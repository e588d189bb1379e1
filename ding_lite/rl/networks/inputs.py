"""Preprocessing of observations: scaling of bytes, and running normalisation.

The statistics of a normalisation are a part of the weights of its policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import ConfigError, ShapeError, kind_of
from ding_lite.rl.batch import Array, FloatArray, NumpyArray, to_numpy
from ding_lite.rl.host_or_device import CPU, AnyArray, as_tensor, floats, namespace, on, placed
from ding_lite.rl.packing import as_floats
from ding_lite.rl.spec import EnvSpec

_PREFIX = "norm."
_NAMES = {"mean", "squares", "count"}


def normed(obs_BI: AnyArray, shift_I: AnyArray, scale_I: AnyArray, limit: float) -> AnyArray:
    normed_BI = (as_floats(obs_BI) - shift_I) * scale_I
    return namespace(normed_BI).clip(normed_BI, -limit, limit)


class RunningNorm:
    """Normalises each number of an observation to mean 0 and standard deviation 1.

    The mean and variance are those of all observations passed to `update` (Chan et al. 1979). The
    norm belongs to a policy: its statistics are saved, published and loaded with the weights, and a
    replay holds unnormalised observations.

    Args:
        clip: Normalised numbers are clipped to plus and minus this, which bounds rare values.
        only_I: Which numbers are normalised, [I] bool; all if None. The others are only clipped.
        device: The device of the statistics; an update there copies nothing to the host.

    Example:
        >>> norm = RunningNorm(1)
        >>> norm.update(np.array([[10.0], [14.0]], dtype=np.float32))
        >>> norm(np.array([[10.0], [12.0]], dtype=np.float32)).round(3).tolist()
        [[-1.0], [0.0]]
    """

    def __init__(
        self,
        size: int,
        *,
        clip: float = 10.0,
        only_I: NumpyArray | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.clip = float(clip)
        # Apple's devices have no float64.
        self.device = CPU if device.type == "mps" else device
        self._only_I = on(self.device, np.ones(size, np.bool_) if only_I is None else only_I)
        self._count = 0.0
        self._mean_I, self._squares_I = on(self.device, np.zeros((2, size)))
        self.shift_I: AnyArray
        """The number subtracted from each input, [I]."""
        self.scale_I: AnyArray
        """The factor of each difference, [I]."""
        self._derive()

    def __call__(self, obs_BI: AnyArray) -> AnyArray:
        """Normalise observations on their own device; bytes are scaled to 0 to 1 first."""
        return normed(obs_BI, *self._shift_and_scale(obs_BI), self.clip)

    def update(self, obs_BI: Array) -> None:
        if not len(obs_BI):
            return  # their mean would be NaN
        seen_BI = as_floats(on(self.device, obs_BI))
        xp = namespace(seen_BI)
        batch_BI = xp.asarray(seen_BI, dtype=xp.float64)
        mean_I = batch_BI.mean(0)
        total = self._count + len(batch_BI)
        delta_I = mean_I - self._mean_I
        self._squares_I += ((batch_BI - mean_I) ** 2).sum(0)
        self._squares_I += delta_I**2 * (self._count * len(batch_BI) / total)
        self._mean_I += delta_I * (len(batch_BI) / total)
        self._count = total
        self._derive()

    def state_dict(self) -> dict[str, Tensor]:
        count = np.array(self._count)
        arrays = {"mean": self._mean_I, "squares": self._squares_I, "count": count}
        return {name: as_tensor(array).to("cpu", copy=True) for name, array in arrays.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        mean_I, squares_I = (np.asarray(state[n]).astype(np.float64) for n in ("mean", "squares"))
        if mean_I.shape != self._mean_I.shape:
            raise ShapeError(
                f"The mean observation to load has shape {mean_I.shape}; {self._mean_I.shape} "
                f"was expected. Is it of another environment?"
            )
        self._mean_I, self._squares_I = (on(self.device, x) for x in (mean_I, squares_I))
        self._count = float(state["count"])
        self._derive()

    def _derive(self) -> None:
        xp, variance_I = namespace(self._mean_I), self._squares_I / max(self._count, 1.0)
        self.shift_I = floats(self._mean_I * self._only_I)
        # A constant number has no deviation: its scale is 1, so that small changes stay small.
        usable_I = (variance_I > 1e-12) & self._only_I
        self.scale_I = floats(xp.where(usable_I, 1.0 / xp.sqrt(variance_I + 1e-12), 1.0))
        self._on_host: tuple[FloatArray, FloatArray] | None = None

    def _shift_and_scale(self, like: AnyArray) -> tuple[AnyArray, AnyArray]:
        both = (self.shift_I, self.scale_I)
        if isinstance(like, Tensor):
            return placed(both[0], like.device), placed(both[1], like.device)
        if self._on_host is None:  # a collector acts often between two updates
            self._on_host = (to_numpy(both[0]), to_numpy(both[1]))
        return self._on_host


def make_norm(
    spec: EnvSpec, *, normalize_obs: bool, device: torch.device = CPU
) -> RunningNorm | None:
    if not normalize_obs:
        return None
    packing = spec.packing
    if spec.is_image or (packing is not None and (packing.is_bytes or packing.has_images)):
        advice = "scale other numbers by fixed factors with gymnasium's `TransformObservation`"
        if spec.obs_dtype is np.float32:
            advice += (
                ", and stack vectors by `FlattenObservation(FrameStackObservation(env, n))`, which "
                "makes a vector of them"
            )
        raise ConfigError(
            f"`normalize_obs` is on, but the observations of {spec.env_id} have images or parts of "
            f"bytes, which are not normalised. Leave it off. Bytes are scaled to 0 to 1 anyway; "
            f"{advice}: make_envs(..., wrappers=[...])."
        )
    if packing is None:
        return RunningNorm(spec.obs_shape[0], device=device)
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
