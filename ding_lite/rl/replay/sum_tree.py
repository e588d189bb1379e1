"""A sum tree: draws slots in proportion to their values.

It is a tree of sums (Schaul et al. 2016, appendix B.2.1) with eight children for each node, without
its uppermost levels: at a level of some hundred nodes a running sum and one binary search are
faster than further levels. A whole batch walks down and up together, in a few numpy calls per level
or, with the extra `fast`, in compiled loops. Both compute the same sums in the same order, and find
the same slots therefore.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from ding_lite.errors import ConfigError, MissingExtraError, pip_line
from ding_lite.rl.replay.sum_tree_numpy import (
    Float32Array,
    Float64Array,
    Int64Array,
    NumpyWalks,
    TreeShape,
)


class SumTree:
    """Values by slot, and fast sums of them; all values are 0 at first."""

    def __init__(self, capacity: int, *, fast: bool | None = None) -> None:
        self.capacity = capacity
        self.is_fast = _is_wanted(fast)
        """Whether numba computes the walks."""
        shape = TreeShape.of(capacity)
        self._sum: Float64Array = shape.zeros()
        self._first_leaf = shape.first_leaf
        self._leaves = self._sum[shape.first_leaf : shape.first_leaf + capacity]
        self._top = self._sum[shape.first_top : shape.first_top + shape.width]
        self._sums_before: Float64Array = np.zeros(shape.width + 1)
        walks: Any = NumpyWalks
        if self.is_fast:
            walks = import_module("ding_lite.rl.replay.sum_tree_numba").NumbaWalks
        self._walks: NumpyWalks = walks(shape, self._sum)

        # A slot with the highest value, and that value; -1 if it must be searched, which is rare:
        # only after a change of this one slot.
        self._highest_slot, self._highest = -1, 0.0
        self._end = 0  # slots from here on have never been written

    @staticmethod
    def bytes_for(capacity: int) -> int:
        """Return the maximum memory of a tree of that many slots, in bytes."""
        return 2 * TreeShape.of(capacity).num_nodes * np.dtype(np.float64).itemsize

    @property
    def values(self) -> Float64Array:
        """The value of each slot; read only."""
        return self._leaves

    @property
    def total(self) -> float:
        return float(self._sum_up()[-1])

    @property
    def highest(self) -> float:
        if self._highest_slot < 0:
            if not self._end:
                return 0.0
            slot = int(self._leaves[: self._end].argmax())
            self._highest_slot, self._highest = slot, float(self._leaves[slot])
        return self._highest

    def draw(self, uniform_B: Float64Array) -> tuple[Int64Array, Float64Array]:
        """Draw slots in proportion to their values; raise ConfigError if every value is 0.

        The sum of all values is divided into B equal segments. `uniform_B`, from 0 to below 1, is
        the position in each segment at which a slot is drawn. Slots are in ascending order, and
        their values are above 0.
        """
        slot_B, value_B = self._walks.draw(uniform_B, self._sum_up())
        if np.count_nonzero(value_B) < len(value_B):
            self._step_back(slot_B, value_B)
        return slot_B, value_B

    def _step_back(self, slot_B: Int64Array, value_B: Float64Array) -> None:
        """Correct draws that rounding moved into a slot of value 0."""
        if not self.highest:
            raise ConfigError("Every value of this tree is 0. Give some slots a higher one first.")
        for row in np.flatnonzero(value_B == 0.0):
            slot_B[row] = np.flatnonzero(self._leaves[: slot_B[row]])[-1]
            value_B[row] = self._leaves[slot_B[row]]

    def update(
        self,
        serial_B: Int64Array,
        amount_B: Float32Array,
        *,
        offset: float,
        power: float,
        first: int,
        end: int,
    ) -> int:
        """Set the values of serials, where serial n is in slot n % capacity.

        Each value becomes (amount + offset) ** power, which must be above 0. If a serial occurs
        twice, its last amount counts; serials before `first` or from `end` on are ignored. Return
        the number of values set; -1, without a change, if an amount is below 0 or not finite.
        """
        value_B = np.absolute(amount_B)  # avoids powers of negative amounts, which are rejected
        value_B += offset
        value_B **= power
        ring = (first, end, self.capacity)
        count, high_slot = self._walks.update(serial_B, amount_B, value_B, ring)
        if count > 0:
            self._note(high_slot)
        return count

    def write(self, start: int, stop: int, values: float | Float64Array) -> None:
        """Set the values, 0 or more, of neighbouring slots."""
        if start == stop:
            return
        self._leaves[start:stop] = values
        self._walks.sum_above(self._first_leaf + start, self._first_leaf + stop)

        self._end = max(self._end, stop)
        high_slot = stop - 1
        if isinstance(values, np.ndarray):
            high_slot = start + int(self._leaves[start:stop].argmax())
        self._note(high_slot)

    def clear(self) -> None:
        self.write(0, self.capacity, 0.0)
        self._end = 0
        self._highest_slot = -1

    def _note(self, high_slot: int) -> None:
        if self._highest_slot >= 0:
            high = float(self._leaves[high_slot])
            if high >= self._highest:
                self._highest_slot, self._highest = high_slot, high
            elif self._leaves[self._highest_slot] != self._highest:
                self._highest_slot = -1

    def _sum_up(self) -> Float64Array:
        """Return the sum of all values before each node of the topmost level, and the total."""
        self._top.cumsum(out=self._sums_before[1:])
        return self._sums_before


def _is_wanted(fast: bool | None) -> bool:
    has_numba = fast is not False and find_spec("numba") is not None
    if fast and not has_numba:
        raise MissingExtraError(
            "`fast` is True, which needs numba, and that is not installed. Install it: "
            f"{pip_line('fast')}. Without `fast` numpy does the same, more slowly."
        )
    return has_numba
