"""The loops of a sum tree, compiled by numba: imported only where the extra `fast` is installed.

They do the same sums in the same order as numpy does in `sum_tree`, so the extra changes the speed
of a run and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
FnT = TypeVar("FnT", bound=Callable[..., object])


def _compiled(fn: FnT) -> FnT:
    """Compile a function at its first call, and keep the result for later processes."""
    numba = import_module("numba")
    compiled: FnT
    try:
        compiled = numba.njit(fn, cache=True)
    except RuntimeError:  # there is no directory to keep it in
        compiled = numba.njit(fn)
    return compiled


def _draw(
    nodes: Float64Array, width: int, num_levels: int, uniform_B: Float64Array
) -> tuple[Int64Array, Float64Array]:
    num_draws = len(uniform_B)
    sums_before = np.zeros(width + 1)
    for top in range(width):
        sums_before[top + 1] = sums_before[top] + nodes[width + top]

    node_B = np.empty(num_draws, dtype=np.int64)
    rest_B = np.empty(num_draws)
    top = 0
    for row in range(num_draws):
        rest = (uniform_B[row] + row) * (sums_before[width] / num_draws)
        while top < width - 1 and sums_before[top + 1] <= rest:
            top += 1
        node_B[row] = width + top
        rest_B[row] = rest - sums_before[top]
    # Level by level, so that the memory of many nodes is waited for at once.
    for _ in range(num_levels):
        for row in range(num_draws):
            node = 2 * node_B[row]
            left = nodes[node]
            is_right = rest_B[row] >= left
            rest_B[row] -= left if is_right else 0.0
            node_B[row] = node + is_right

    value_B = np.empty(num_draws)
    for row in range(num_draws):
        value_B[row] = nodes[node_B[row]]
        node_B[row] -= width << num_levels
    return node_B, value_B


def _update(
    nodes: Float64Array,
    num_levels: int,
    serial_B: Int64Array,
    amount_B: Float32Array,
    offset: np.float32,
    power: np.float32,
    ring: tuple[int, int, int],
) -> tuple[int, int]:
    for row in range(len(amount_B)):
        if not 0.0 <= amount_B[row] < np.inf:
            return -1, 0
    first, end, capacity = ring
    first_leaf = len(nodes) // 2
    first_slot = first % capacity
    node_B = np.empty(len(serial_B), dtype=np.int64)
    count = 0
    for row in range(len(serial_B)):
        if first <= serial_B[row] < end:
            slot = first_slot + serial_B[row] - first
            node = first_leaf + (slot if slot < capacity else slot - capacity)
            nodes[node] = (amount_B[row] + offset) ** power
            node_B[count] = node
            count += 1
    if not count:
        return 0, 0

    high = node_B[0]
    for row in range(count):
        if nodes[node_B[row]] > nodes[high]:
            high = node_B[row]
    # From each leaf to the top: who comes last to a node finds all sums below it done. Unsigned, as
    # numba asks of each index that has a sign whether it counts from the end.
    one = np.uint64(1)
    for row in range(count):
        above = np.uint64(node_B[row])
        for _ in range(num_levels):
            above >>= one
            left = above << one
            nodes[above] = nodes[left] + nodes[left | one]
    return count, high - first_leaf


def _sum_above(nodes: Float64Array, num_levels: int, first: int, last: int) -> None:
    for _ in range(num_levels):
        first, last = first >> 1, ((last - 1) >> 1) + 1
        for node in range(first, last):
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]


draw = _compiled(_draw)
sum_above = _compiled(_sum_above)
update = _compiled(_update)
