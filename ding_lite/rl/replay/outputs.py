"""Output arrays of samples, reused once the caller holds no reference to them.

A batch of images takes megabytes. The system clears newly allocated memory of that size page by
page, which takes longer than copying the images. CPython's reference count of an array says whether
a batch, or a view of it, is still in use.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from ding_lite.rl.batch import NumpyArray

LARGE_BYTES = 1 << 18
"""The size, in bytes, from which on memory is reused; smaller arrays are allocated faster."""
MOST_KEPT = 8
"""The number of arrays that are kept for reuse; beyond it arrays are allocated."""


class Outputs:
    """Gathers rows of arrays into reused memory."""

    def __init__(self) -> None:
        self._arrays: list[NumpyArray] = [np.empty(0)]
        self._idle_count = self._count(0)
        self._arrays.clear()

    def take(self, source: NumpyArray, index: npt.NDArray[np.integer[Any]]) -> NumpyArray:
        """Return the rows of an array at an index of any shape, in memory that the caller owns."""
        if index.size * source.strides[0] < LARGE_BYTES:
            return source.take(index, axis=0)
        out = self.empty((*index.shape, *source.shape[1:]), source.dtype)
        # Numpy writes directly into `out` only in a mode that checks no indices; they are valid.
        return source.take(index, axis=0, out=out, mode="clip")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NumpyArray:
        """Return an uninitialised array that is not in use."""
        for place in range(len(self._arrays)):
            if self._count(place) == self._idle_count:
                found = self._arrays[place]
                if found.shape == shape and found.dtype == dtype:
                    return found
                self._arrays[place] = np.empty(shape, dtype)
                return self._arrays[place]

        fresh = np.empty(shape, dtype)
        if len(self._arrays) < MOST_KEPT:
            self._arrays.append(fresh)
        return fresh

    def _count(self, place: int) -> int:
        return sys.getrefcount(self._arrays[place])
