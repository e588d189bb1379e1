"""A sum tree: draws slots in proportion to their values.

It is a tree of sums (Schaul et al. 2016, appendix B.2.1) with eight children for each node, without
its uppermost levels: at a level of some hundred nodes a running sum and one binary search are
faster than further levels. A whole batch walks down and up together, in a few numpy calls per level
or, with the extra `fast`, in compiled loops (`sum_tree_numba`). Both compute the same sums in the
same order, and find the same slots therefore.

In numpy each node has its sum, and the sum of its elder siblings, those with lower numbers. The
elder sums of eight siblings are adjacent; the number of them that a draw reaches is the child that
it is in.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ding_lite.errors import ConfigError, MissingExtraError, pip_line

Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]

TOP_WIDTH = 512
"""The maximum number of nodes of the topmost level."""
FAMILY = 8
"""The children of a node: as many numbers as a cache line of 64 bytes has."""
_FAMILY_BITS = np.array(3)  # an array, because numpy would convert a number at each call
_RECORD = np.dtype((np.void, FAMILY * np.dtype(np.float64).itemsize))


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


class TreeShape(NamedTuple):
    """The levels of a tree, in one array and in the order of a heap.

    Node i has the children 8 i + 1 to 8 i + 8. The topmost level need not begin with node 0.
    """

    num_levels: int
    """The levels below the topmost one."""
    width: int
    """The nodes of the topmost level."""
    first_top: int
    first_leaf: int
    num_nodes: int
    """All nodes, including the unused ones before the topmost level and between levels."""

    @classmethod
    def of(cls, capacity: int) -> TreeShape:
        num_levels, width = 0, capacity
        while width > TOP_WIDTH:
            num_levels, width = num_levels + 1, -(-width // FAMILY)
        # Far enough from node 0 that the first node's children come after the last node.
        first_top = first_leaf = -(-(width - 1) // (FAMILY - 1))
        for _ in range(num_levels):
            first_leaf = FAMILY * first_leaf + 1
        num_families = -(-(first_leaf + width * FAMILY**num_levels - 1) // FAMILY)
        return cls(num_levels, width, first_top, first_leaf, 1 + num_families * FAMILY)

    def zeros(self) -> Float64Array:
        """Allocate a number for each node, each family in one cache line."""
        memory: Float64Array = np.zeros(self.num_nodes + FAMILY)
        place_in_line = memory.ctypes.data // memory.itemsize % FAMILY
        start = (FAMILY - 1 - place_in_line) % FAMILY  # node 1 is the first of a family
        return memory[start : start + self.num_nodes]


class NumpyWalks:
    """Finds slots and updates sums."""

    def __init__(self, shape: TreeShape, sums: Float64Array) -> None:
        self._shape = shape
        self._sum = sums
        self._elder: Float64Array = shape.zeros()
        self._sum_N8 = sums[1:].reshape(-1, FAMILY)
        self._elder_N8 = self._elder[1:].reshape(-1, FAMILY)
        self._elders_N = _as_records(self._elder_N8)
        self._scratch = _Scratch(0)

    def draw(
        self, uniform_B: Float64Array, sums_before: Float64Array
    ) -> tuple[Int64Array, Float64Array]:
        """Find the leaves of the B draws, and their values; see `SumTree.draw`."""
        scratch = self._scratch_for(len(uniform_B))
        rest_B = uniform_B + scratch.part_B
        rest_B *= sums_before[-1] / len(uniform_B)
        # Without the last sum: a draw that rounding moves beyond it is in the last node.
        node_B: Int64Array = sums_before[1:-1].searchsorted(rest_B, side="right")
        rest_B -= sums_before.take(node_B)
        node_B += self._shape.first_top
        for _ in range(self._shape.num_levels):
            self._elder_N8.take(node_B, axis=0, out=scratch.elder_B8, mode="clip")
            # Repeated first, because numpy compares long rows much faster than many short ones.
            np.less_equal(scratch.elder_8B, rest_B.repeat(FAMILY), scratch.is_reached_8B)
            node_B <<= _FAMILY_BITS
            node_B += np.bitwise_count(scratch.reached_B)
            rest_B -= self._elder.take(node_B, out=scratch.total_B, mode="clip")
        value_B = self._sum.take(node_B)
        node_B -= self._shape.first_leaf
        return node_B, value_B

    def update(
        self,
        serial_B: Int64Array,
        amount_B: Float32Array,
        value_B: Float32Array,
        ring: tuple[int, int, int],
    ) -> tuple[int, int]:
        """Set values as `SumTree.update` does; return the number, and a slot with the highest."""
        if not (amount_B.min() >= 0.0 and amount_B.max() < np.inf):  # true for NaN too
            return -1, 0
        first, end, capacity = ring
        is_held_B = (serial_B - first).view(np.uint64) < end - first  # negatives become large
        if not is_held_B.all():
            serial_B, value_B = serial_B[is_held_B], value_B[is_held_B]
            if not len(serial_B):
                return 0, 0

        slot_B = serial_B % capacity
        node_B = slot_B + self._shape.first_leaf
        self._sum[node_B] = value_B
        high = int(slot_B[self._sum.take(node_B).argmax()])
        scratch = self._scratch_for(len(node_B))
        for _ in range(self._shape.num_levels):
            node_B -= 1
            node_B >>= _FAMILY_BITS
            self._sum_N8.take(node_B, axis=0, out=scratch.sum_B8, mode="clip")
            for elder_B, sum_B, next_elder_B in scratch.siblings:
                np.add(elder_B, sum_B, next_elder_B)
            self._elders_N[node_B] = scratch.elders_B
            self._sum[node_B] = scratch.total_B
        return len(slot_B), high

    def sum_above(self, first: int, last: int) -> None:
        """Update the sums above the leaves from `first` to before `last`, counted as nodes."""
        for _ in range(self._shape.num_levels):
            first, last = (first - 1) // FAMILY, (last - 2) // FAMILY + 1
            upto_N8 = self._sum_N8[first:last].cumsum(axis=1)
            self._elder_N8[first:last, 1:] = upto_N8[:, :-1]
            self._sum[first:last] = upto_N8[:, -1]

    def _scratch_for(self, size: int) -> _Scratch:
        if size != self._scratch.size:
            self._scratch = _Scratch(size)
        return self._scratch


class _Scratch:
    def __init__(self, size: int) -> None:
        self.size = size
        self.part_B = np.arange(size, dtype=np.float64)
        self.sum_B8: Float64Array = np.zeros((size, FAMILY))
        self.elder_B8: Float64Array = np.zeros((size, FAMILY))  # the first is always 0
        self.elder_8B = self.elder_B8.reshape(-1)
        self.elders_B = _as_records(self.elder_B8)
        self.total_B: Float64Array = np.zeros(size)
        elders = [*self.elder_B8.T, self.total_B]
        self.siblings = [*zip(elders, self.sum_B8.T, elders[1:], strict=False)]
        """For each of eight siblings its elders' sum, its own, and both together: views, [B]."""
        self.is_reached_8B = np.zeros(size * FAMILY, dtype=np.bool_)
        self.reached_B = self.is_reached_8B.view(np.uint64)
        """`is_reached_8B` with the eight flags of a node in one word."""


def _as_records(array_N8: Float64Array) -> npt.NDArray[Any]:
    """View rows as records, which are copied faster than single numbers."""
    records_N: npt.NDArray[Any] = array_N8.view(_RECORD)[:, 0]
    return records_N
