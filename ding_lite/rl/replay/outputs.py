"""Arrays that are sampled into, and sampled into again once nobody looks at them any more.

A batch of images takes megabytes. The system clears fresh memory of that size page by page, which
takes longer than copying the images. What is ugly here and why: whether somebody still holds a
batch, or a view of it, is read from the reference count of its array, as CPython keeps it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from ding_lite.rl.batch import NumpyArray

LARGE_BYTES = 1 << 18
"""From this size on memory is used again; smaller arrays are quicker made anew."""
MOST_KEPT = 8
"""So many arrays are kept at most; a user who holds more batches than that gets fresh ones."""


class Outputs:
    """Takes rows of arrays into memory of its own.

    Example:
        >>> outputs = Outputs()
        >>> outputs.take(np.arange(6).reshape(3, 2), np.array([2, 0]))
        array([[4, 5],
               [0, 1]])
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._arrays: list[NumpyArray] = [np.empty(0)]
        self._idle_count = self._count(0)
        self._arrays.clear()

    def take(self, source: NumpyArray, index: npt.NDArray[np.integer[Any]]) -> NumpyArray:
        """Return the rows of an array at an index of any shape, as memory of the caller's."""
        if index.size * source.strides[0] < LARGE_BYTES:
            return source.take(index, axis=0)
        out = self.empty((*index.shape, *source.shape[1:]), source.dtype)
        # Numpy writes straight into `out` only if it need not check the places, which are right.
        return source.take(index, axis=0, out=out, mode="clip")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NumpyArray:
        """Return an array that nobody else holds, with anything in it."""
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
        """Count who holds an array: this object, and everybody else."""
        return sys.getrefcount(self._arrays[place])
