"""The rows of a batch by member: B rows for each of G policies that learn as one computation.

A single policy is one member. Members may have batches of different sizes: then each has as many
rows as the largest, and the rows beyond its own size do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from ding_lite.errors import ShapeError
from ding_lite.rl.batch import Array, NumpyArray
from ding_lite.rl.host_or_device import CPU, AnyArray, namespace, on, zeros_like


class Rows:
    """The layout of the batches of G members in one batch.

    Args:
        mask_GB: Which rows count; the first `sizes` ones of each member if None.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        gammas: Sequence[float],
        device: torch.device = CPU,
        *,
        mask_GB: NumpyArray | None = None,
    ) -> None:
        self.count = len(sizes)
        self.largest = max(sizes) if mask_GB is None else mask_GB.shape[1]
        self._shape = (self.count, self.largest)
        self._device = device
        size_G1 = np.array(sizes, dtype=np.float32)[:, None]
        if mask_GB is None:
            mask_GB = np.arange(self.largest)[None] < size_G1
        self.gamma_G1: AnyArray = on(device, np.array(gammas, dtype=np.float32)[:, None])
        self._all: AnyArray = on(device, np.arange(self.num_rows))
        self._size_G1: AnyArray = on(device, size_G1)
        self._size_G: AnyArray = self._size_G1[:, 0]
        self._ones: AnyArray = on(device, np.ones(self.largest, dtype=np.float32))
        self._mask_GB: AnyArray = None
        if not mask_GB.all():
            self._mask_GB = on(device, mask_GB)

    @classmethod
    @lru_cache(maxsize=64)
    def of_one(cls, size: int, gamma: float, device: torch.device) -> Rows:
        """Return the layout of a single policy's batch, cached."""
        if not size:
            raise ShapeError("The batch to learn from is empty; at least one row was expected.")
        return cls([size], [gamma], device)

    @property
    def num_rows(self) -> int:
        return self.count * self.largest

    def fold(self, values: Array) -> AnyArray:
        """Return one number per row as [G, B], on the device of the computation."""
        return on(self._device, values).reshape(self._shape)

    def per_member(self, values: Sequence[float]) -> AnyArray:
        """Return a setting of each member as an operand, [G]; a plain number for a single one.

        A captured update cannot copy an array of the host.
        """
        return values[0] if self.count == 1 else on(self._device, np.array(values, np.float32))

    def pick(self, values_GBA: AnyArray, action_GB: AnyArray) -> AnyArray:
        """Return the value of an action in each row, [G, B]."""
        flat_MA = values_GBA.reshape(self.num_rows, -1)
        return flat_MA[self._all, action_GB.reshape(-1)].reshape(action_GB.shape)

    def spread(self, picked_GB: AnyArray, action_GB: AnyArray, like_GBA: AnyArray) -> AnyArray:
        """Return zeros shaped [G, B, A], except for the value of an action in each row."""
        values_GBA = zeros_like(like_GBA)
        flat_MA = values_GBA.reshape(self.num_rows, -1)  # a view
        flat_MA[self._all, action_GB.reshape(-1)] = picked_GB.reshape(-1)
        return values_GBA

    def mean(self, values_GB: AnyArray) -> AnyArray:
        """Return the mean over each member's own rows, [G]."""
        own_GB = self._own(values_GB)
        return own_GB @ self._ones / self._size_G  # a product takes half as long as a sum

    def per_size(self, slope_GB: AnyArray) -> AnyArray:
        return self._own(slope_GB / self._size_G1)

    def _own(self, values_GB: AnyArray) -> AnyArray:
        """Return values with zeros in the rows that do not count."""
        if self._mask_GB is None:
            return values_GB
        return namespace(values_GB).where(self._mask_GB, values_GB, 0.0)
