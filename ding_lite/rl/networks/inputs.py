"""Preprocessing of observations: scaling of bytes, and running normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import ShapeError
from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.packing import as_floats as as_floats


class RunningNorm:
    """Normalises each number of an observation to mean 0 and standard deviation 1.

    Mean and variance are those of all observations it was updated with (Chan et al. 1979). A
    policy owns it, so that they are saved, published and loaded with its weights, and replay
    holds observations as they were.

    Args:
        size: The length of an observation.
        clip: Normalised numbers are clipped to plus and minus this, which bounds rare ones.
        only_I: Which numbers are normalised, [I] bool; all if None. The others are only clipped.

    Example:
        >>> norm = RunningNorm(1)
        >>> norm.update(np.array([[10.0], [14.0]], dtype=np.float32))
        >>> norm(np.array([[10.0], [12.0]], dtype=np.float32)).round(3).tolist()
        [[-1.0], [0.0]]
    """

    def __init__(self, size: int, *, clip: float = 10.0, only_I: NumpyArray | None = None) -> None:
        """Change nothing until the first update."""
        self.clip = float(clip)
        """The bound of normalised numbers."""
        self._only_I = only_I
        self._count = 0.0
        self._mean_I = np.zeros(size, dtype=np.float64)
        self._squares_I = np.zeros(size, dtype=np.float64)
        self.shift_I = np.zeros(size, dtype=np.float32)
        """The number subtracted from each input, [I]."""
        self.scale_I = np.ones(size, dtype=np.float32)
        """The factor of each difference, [I]."""

    def __call__(self, obs_BI: NumpyArray) -> FloatArray:
        """Normalise observations; bytes are scaled to 0 to 1 first."""
        normed_BI: FloatArray = (as_floats(obs_BI) - self.shift_I) * self.scale_I
        return np.clip(normed_BI, np.float32(-self.clip), np.float32(self.clip), out=normed_BI)

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
        self.shift_I = self._mean_I.astype(np.float32)
        # A constant number has no deviation; it becomes 0, and small changes stay small.
        usable_I = variance_I > 1e-12
        self.scale_I = np.where(usable_I, 1.0 / np.sqrt(variance_I + 1e-12), 1.0).astype(np.float32)
        if self._only_I is not None:
            self.shift_I *= self._only_I
            self.scale_I[~self._only_I] = 1.0
