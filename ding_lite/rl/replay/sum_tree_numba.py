"""Walks along a sum tree, compiled by numba; imported only if the extra `fast` is installed.

They compute the same sums in the same order as `NumpyWalks`, so the extra changes only the
speed of a run. The sums of elder siblings are not stored: in a compiled loop, adding them up when
they are needed is faster than updating them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
FnT = TypeVar("FnT", bound=Callable[..., object])


class NumbaWalks:
    """Finds slots and updates sums, like `NumpyWalks`."""

    def __init__(self, shape: tuple[int, ...], sums: Float64Array) -> None:
        self._shape = tuple(shape)  # numba reads a named tuple as slowly as 30 leaves
        self._sum = sums

    def draw(
        self, uniform_B: Float64Array, sums_before: Float64Array
    ) -> tuple[Int64Array, Float64Array]:
        return _draw(self._sum, self._shape, uniform_B, sums_before)

    def update(
        self,
        serial_B: Int64Array,
        amount_B: Float32Array,
        value_B: Float32Array,
        ring: tuple[int, int, int],
    ) -> tuple[int, int]:
        return _update(self._sum, self._shape, serial_B, amount_B, value_B, ring)

    def sum_above(self, first: int, last: int) -> None:
        _sum_above(self._sum, self._shape, first, last)


def _compiled(fn: FnT) -> FnT:
    numba = import_module("numba")
    compiled: FnT
    try:
        compiled = numba.njit(fn, cache=True)
    except RuntimeError:  # no directory for the cache
        compiled = numba.njit(fn)
    return compiled


# Indices are unsigned: for a signed one numba checks each time whether it counts from the end.


@_compiled
def _sum_family(sum_of: Float64Array, parent: np.uint64) -> None:
    child = (parent << np.uint64(3)) + np.uint64(1)
    total = sum_of[child]
    for _ in range(7):
        child += np.uint64(1)
        total += sum_of[child]
    sum_of[parent] = total


@_compiled
def _draw(
    sum_of: Float64Array, shape: tuple[int, ...], uniform_B: Float64Array, sums_before: Float64Array
) -> tuple[Int64Array, Float64Array]:
    num_levels, width, first_top, first_leaf, _ = shape
    num_draws = len(uniform_B)
    node_B = np.empty(num_draws, dtype=np.int64)
    rest_B = np.empty(num_draws)
    top = 0
    for row in range(num_draws):
        rest = (uniform_B[row] + row) * (sums_before[width] / num_draws)
        while top < width - 1 and sums_before[top + 1] <= rest:
            top += 1
        node_B[row] = first_top + top
        rest_B[row] = rest - sums_before[top]
    # One level at a time, so that the processor loads the memory of many nodes at once.
    for _ in range(num_levels):
        for row in range(num_draws):
            child, rest = (np.uint64(node_B[row]) << np.uint64(3)) + np.uint64(1), rest_B[row]
            elder = upto = 0.0
            reached = np.int64(0)
            for place in range(7):
                upto += sum_of[child + np.uint64(place)]
                is_reached = upto <= rest
                reached += is_reached
                elder = upto if is_reached else elder
            node_B[row] = np.int64(child) + reached
            rest_B[row] = rest - elder

    value_B = np.empty(num_draws)
    for row in range(num_draws):
        value_B[row] = sum_of[node_B[row]]
        node_B[row] -= first_leaf
    return node_B, value_B


@_compiled
def _update(
    sum_of: Float64Array,
    shape: tuple[int, ...],
    serial_B: Int64Array,
    amount_B: Float32Array,
    value_B: Float32Array,
    ring: tuple[int, int, int],
) -> tuple[int, int]:
    for row in range(len(amount_B)):
        if not 0.0 <= amount_B[row] < np.inf:
            return -1, 0
    num_levels, _, _, first_leaf, _ = shape
    first, end, capacity = ring
    first_slot = first % capacity
    node_B = np.empty(len(serial_B), dtype=np.int64)
    count = 0
    for row in range(len(serial_B)):
        if first <= serial_B[row] < end:
            slot = first_slot + serial_B[row] - first
            node = first_leaf + (slot if slot < capacity else slot - capacity)
            sum_of[node] = value_B[row]
            node_B[count] = node
            count += 1
    if not count:
        return 0, 0

    high = node_B[0]
    for row in range(count):
        if sum_of[node_B[row]] > sum_of[high]:
            high = node_B[row]
    # From each leaf to the top: the last walk that reaches a node finds all sums below complete.
    for row in range(count):
        above = np.uint64(node_B[row])
        for _ in range(num_levels):
            above = (above - np.uint64(1)) >> np.uint64(3)
            _sum_family(sum_of, above)
    return count, high - first_leaf


@_compiled
def _sum_above(sum_of: Float64Array, shape: tuple[int, ...], first: int, last: int) -> None:
    for _ in range(shape[0]):
        first, last = (first - 1) >> 3, ((last - 2) >> 3) + 1
        for node in range(first, last):
            _sum_family(sum_of, np.uint64(node))
