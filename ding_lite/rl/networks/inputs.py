"""Preprocessing of observations: scaling of bytes, and running normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import ShapeError
from ding_lite.rl.batch import FloatArray, NumpyArray

_PER_BYTE = 1.0 / 255.0


@overload
def as_floats(obs: Tensor) -> Tensor: ...
@overload
def as_floats(obs: NumpyArray) -> FloatArray: ...
def as_floats(obs: Tensor | NumpyArray) -> Tensor | NumpyArray:
    """Scale bytes to 0 to 1; return floats unchanged.

    Example:
        >>> as_floats(np.array([0, 255], dtype=np.uint8)).tolist()
        [0.0, 1.0]
    """
    if isinstance(obs, Tensor):
        return obs.float().mul_(_PER_BYTE) if obs.dtype == torch.uint8 else obs
    return obs.astype(np.float32) * np.float32(_PER_BYTE) if obs.dtype == np.uint8 else obs


class RunningNorm:
    """Normalises each number of an observation to mean 0 and standard deviation 1.

    Mean and variance are those of all observations it was updated with (Chan et al. 1979). A
    policy owns it, so that they are saved, published and loaded with its weights, and replay
    holds observations as they were.

    Args:
        size: The length of an observation.
        clip: Normalised numbers are clipped to plus and minus this, which bounds rare ones.

    Example:
        >>> norm = RunningNorm(1)
        >>> norm.update(np.array([[10.0], [14.0]], dtype=np.float32))
        >>> norm(np.array([[10.0], [12.0]], dtype=np.float32)).round(3).tolist()
        [[-1.0], [0.0]]
    """

    def __init__(self, size: int, *, clip: float = 10.0) -> None:
        """Change nothing until the first update."""
        self._clip = np.float32(clip)
        self._count = 0.0
        self._mean_I = np.zeros(size, dtype=np.float64)
        self._squares_I = np.zeros(size, dtype=np.float64)
        self._shift_I = np.zeros(size, dtype=np.float32)
        self._scale_I = np.ones(size, dtype=np.float32)

    def __call__(self, obs_BI: NumpyArray) -> FloatArray:
        """Normalise observations; bytes are scaled to 0 to 1 first."""
        normed_BI: FloatArray = (as_floats(obs_BI) - self._shift_I) * self._scale_I
        return np.clip(normed_BI, -self._clip, self._clip, out=normed_BI)

    def update(self, obs_BI: NumpyArray) -> None:
        """Update the statistics with more observations."""
        batch_BI = as_floats(obs_BI).astype(np.float64)
        mean_I = batch_BI.mean(axis=0)
        total = self._count + len(batch_BI)
        delta_I = mean_I - self._mean_I
        self._squares_I += ((batch_BI - mean_I) ** 2).sum(axis=0)
        self._squares_I += delta_I**2 * (self._count * len(batch_BI) / total)
        self._mean_I += delta_I * (len(batch_BI) / total)
        self._count = total
        self._derive()

    def state_dict(self) -> dict[str, Tensor]:
        """Copy the statistics."""
        arrays = {"mean": self._mean_I, "squares": self._squares_I, "count": self._count}
        return {name: torch.tensor(array, dtype=torch.float64) for name, array in arrays.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        Raises:
            ShapeError: If it is of observations of another length.
        """
        mean_I, squares_I = np.asarray(state["mean"]), np.asarray(state["squares"])
        if mean_I.shape != self._mean_I.shape:
            raise ShapeError(
                f"The mean observation to load has shape {mean_I.shape}; {self._mean_I.shape} "
                f"was expected. Is it of another environment?"
            )
        self._mean_I[:], self._squares_I[:] = mean_I, squares_I
        self._count = float(state["count"])
        self._derive()

    def _derive(self) -> None:
        variance_I = self._squares_I / max(self._count, 1.0)
        self._shift_I = self._mean_I.astype(np.float32)
        # A constant number has no deviation; it becomes 0, and small changes stay small.
        usable_I = variance_I > 1e-12
        self._scale_I = np.where(usable_I, 1.0 / np.sqrt(variance_I + 1e-12), 1.0).astype(
            np.float32
        )
