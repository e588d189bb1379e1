"""Drawing slots in proportion to their values, for a replay that prefers some transitions.

A binary tree of sums (Schaul et al. 2016, appendix B.2.1), cut off at the top: above a level of
some thousand nodes a running sum and one binary search are quicker than further levels. A whole
batch walks the levels together, one numpy call a level and step, or, with the extra `fast`, in
one compiled function. Both do the same sums in the same order, and so find the same slots.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ding_lite.errors import ConfigError, MissingExtraError
from ding_lite.rl.batch import FloatArray
from ding_lite.settings import check_all, whole

Float64Array: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]

TOP_BITS = 12
"""The topmost level has at most two to the power of that many nodes."""


class SumTree:
    """Values by slot, and quick sums of them. Every value is 0 at first.

    Args:
        capacity: How many slots.
        fast: Whether to use numba: None where it is installed, True insists on it.

    Raises:
        ConfigError: If the capacity is below 1.
        MissingExtraError: If numba is insisted on and not installed.

    Example:
        >>> tree = SumTree(4)
        >>> tree.write(0, 4, np.array([1.0, 0.0, 3.0, 4.0]))
        >>> tree.total, tree.highest
        (8.0, 4.0)
        >>> slots, values = tree.draw(np.full(4, 0.5))
        >>> slots.tolist(), values.tolist()
        ([2, 2, 3, 3], [3.0, 3.0, 4.0, 4.0])
    """

    def __init__(self, capacity: int, *, fast: bool | None = None) -> None:
        """Make room for the sums."""
        check_all(whole(1, capacity=capacity))
        self.capacity = capacity
        self._compiled = load_compiled(fast)
        # In the order of a heap: node i has the children 2 i and 2 i + 1. The topmost level in
        # use is that of the nodes `width` to `2 width`.
        self._num_levels, width = _shape(capacity)
        self._first_leaf = width << self._num_levels
        self._nodes: Float64Array = np.zeros(2 * self._first_leaf)
        self._pairs = self._nodes.reshape(-1, 2)
        self._leaves = self._nodes[self._first_leaf : self._first_leaf + capacity]
        self._top = self._nodes[width : 2 * width]
        self._first_top = width
        self._sums_before: Float64Array = np.zeros(width + 1)
        self._part_B: Float64Array = np.zeros(0)

        # A slot with the highest value, and that value; -1 where it must be looked for. That is
        # seldom: this one slot must have changed.
        self._highest_slot, self._highest = -1, 0.0
        self._end = 0  # slots from here on have never been written

    @staticmethod
    def bytes_for(capacity: int) -> int:
        """Return what a tree of that many slots takes of memory, in bytes."""
        num_levels, width = _shape(capacity)
        return 2 * (width << num_levels) * np.dtype(np.float64).itemsize

    @property
    def is_fast(self) -> bool:
        """Whether numba does the work."""
        return self._compiled is not None

    @property
    def values(self) -> Float64Array:
        """The value of each slot, to be looked at."""
        return self._leaves

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._sum_up()[-1])

    @property
    def highest(self) -> float:
        """The highest value."""
        if self._highest_slot < 0:
            if not self._end:
                return 0.0
            slot = int(self._leaves[: self._end].argmax())
            self._highest_slot, self._highest = slot, float(self._leaves[slot])
        return self._highest

    def draw(self, uniform_B: Float64Array) -> tuple[Int64Array, Float64Array]:
        """Draw slots in proportion to their values.

        The sum of all values is cut into B equal parts, and each gives one slot.

        Args:
            uniform_B: Where in its part each draw lies, from 0 to below 1.

        Returns:
            The slots in ascending order, and their values, which are above 0; both [B].

        Raises:
            ConfigError: If every value is 0.
        """
        if self._compiled is not None:
            slot_B, value_B = self._compiled.draw(
                self._nodes, self._first_top, self._num_levels, uniform_B
            )
        else:
            slot_B, value_B = self._draw(uniform_B)
        if np.count_nonzero(value_B) < len(value_B):
            self._step_back(slot_B, value_B)
        return slot_B, value_B

    def _draw(self, uniform_B: Float64Array) -> tuple[Int64Array, Float64Array]:
        if len(uniform_B) != len(self._part_B):
            self._part_B = np.arange(len(uniform_B), dtype=np.float64)
        nodes, sums_before = self._nodes, self._sum_up()
        rest_B = uniform_B + self._part_B
        rest_B *= sums_before[-1] / len(uniform_B)
        # The last sum is left out: what rounding has pushed over it is in the last node, too.
        node_B: Int64Array = sums_before[1:-1].searchsorted(rest_B, side="right")
        rest_B -= sums_before.take(node_B)
        node_B += self._first_top
        for _ in range(self._num_levels):
            node_B += node_B
            left_B = nodes.take(node_B)
            is_right_B = rest_B >= left_B
            node_B += is_right_B
            left_B *= is_right_B
            rest_B -= left_B
        value_B = nodes.take(node_B)
        node_B -= self._first_leaf
        return node_B, value_B

    def _step_back(self, slot_B: Int64Array, value_B: Float64Array) -> None:
        """Mend what rounding has pushed over the end of a sum, into a slot of value 0."""
        if not self.highest:
            raise ConfigError("Every value of this tree is 0. Give some slots a higher one first.")
        for row in np.flatnonzero(value_B == 0.0):
            slot_B[row] = np.flatnonzero(self._leaves[: slot_B[row]])[-1]
            value_B[row] = self._leaves[slot_B[row]]

    def update(
        self,
        serial_B: Int64Array,
        amount_B: FloatArray,
        *,
        offset: float,
        power: float,
        first: int,
        end: int,
    ) -> int:
        """Set the values of numbered things in a ring, where number n lies in slot n % capacity.

        Each value becomes (amount + offset) ** power, which must be above 0. Where a number comes
        twice, its last amount counts.

        Args:
            serial_B: Numbers. Those before `first` or from `end` on are left out.
            amount_B: 0 or more each.
            offset: Added to each amount.
            power: What it is raised to then.
            first: The oldest number that is held.
            end: The number after the newest one, at most the capacity from `first`.

        Returns:
            How many values were set; -1, and none is, if an amount is below 0 or not finite.
        """
        if self._compiled is not None:
            count, high = self._compiled.update(
                self._nodes, self._num_levels, serial_B, amount_B,
                np.float32(offset), np.float32(power), (first, end, self.capacity),
            )  # fmt: skip
        elif amount_B.min() >= 0.0 and amount_B.max() < np.inf:  # not so if there is a NaN
            value_B = np.power(amount_B + np.float32(offset), np.float32(power))
            count, high = self._update(serial_B, value_B, first, end)
        else:
            return -1
        if count > 0:
            self._note(high)
        return int(count)

    def _update(
        self, serial_B: Int64Array, value_B: FloatArray, first: int, end: int
    ) -> tuple[int, int]:
        """Set values; return how many, and a slot with the highest of them."""
        is_held_B = (serial_B - first).view(np.uint64) < end - first  # below 0 is very high
        if not is_held_B.all():
            serial_B, value_B = serial_B[is_held_B], value_B[is_held_B]
            if not len(serial_B):
                return 0, 0

        slot_B = serial_B % self.capacity
        node_B = slot_B + self._first_leaf
        self._nodes[node_B] = value_B
        for _ in range(self._num_levels):
            node_B >>= 1
            pair_B2 = self._pairs.take(node_B, axis=0)
            self._nodes[node_B] = pair_B2[:, 0] + pair_B2[:, 1]
        return len(slot_B), int(slot_B[self._leaves.take(slot_B).argmax()])

    def write(self, start: int, stop: int, values: float | Float64Array) -> None:
        """Set the values of neighbouring slots; each is 0 or more."""
        if start == stop:
            return
        first, last = self._first_leaf + start, self._first_leaf + stop
        self._nodes[first:last] = values
        if self._compiled is not None:
            self._compiled.sum_above(self._nodes, self._num_levels, first, last)
        else:
            self._sum_above(first, last)

        self._end = max(self._end, stop)
        high = stop - 1
        if isinstance(values, np.ndarray):
            high = start + int(self._leaves[start:stop].argmax())
        self._note(high)

    def _sum_above(self, first: int, last: int) -> None:
        """Sum up anew what is above the nodes `first` to before `last` of one level."""
        nodes = self._nodes
        for _ in range(self._num_levels):
            first, last = first >> 1, ((last - 1) >> 1) + 1
            if last - first == 1:
                nodes[first] = nodes[2 * first] + nodes[2 * first + 1]
            else:
                np.add(
                    nodes[2 * first : 2 * last : 2],
                    nodes[2 * first + 1 : 2 * last : 2],
                    out=nodes[first:last],
                )

    def clear(self) -> None:
        """Set every value to 0."""
        self._nodes[:] = 0.0
        self._end = 0
        self._highest_slot = -1

    def _note(self, high_slot: int) -> None:
        """Keep the highest value, given the slot of that of what was just written."""
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


def _shape(capacity: int) -> tuple[int, int]:
    """Return the number of levels below the topmost one, and its width."""
    num_levels = max(0, (capacity - 1).bit_length() - TOP_BITS)
    return num_levels, -(-capacity >> num_levels)


def load_compiled(fast: bool | None) -> ModuleType | None:
    """Return the compiled loops where they are wanted and can be had.

    Raises:
        MissingExtraError: If they are insisted on and numba is not installed.
    """
    if fast is False:
        return None
    if find_spec("numba") is None:
        if fast:
            raise MissingExtraError(
                "`fast` is True, which needs numba, and that is not installed. Install it: "
                'pip install "ding-lite[fast]". Without `fast` numpy does the same, more slowly.'
            )
        return None
    return import_module("ding_lite.rl.sum_tree_numba")
