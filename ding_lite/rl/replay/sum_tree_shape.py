"""The memory layout of a sum tree, for all walks along it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]

TOP_WIDTH = 512
"""The topmost level has at most that many nodes."""
FAMILY = 8
"""The children of a node: the numbers in a cache line of 64 bytes."""


class TreeShape(NamedTuple):
    """The levels of a tree, in one array and in the order of a heap.

    Node i has the children 8 i + 1 to 8 i + 8. The topmost level need not begin with node 0.
    """

    num_levels: int
    """Levels below the topmost one."""
    width: int
    """Nodes of the topmost level."""
    first_top: int
    first_leaf: int
    num_nodes: int
    """All nodes, with the unused ones before the topmost level and between levels."""

    @classmethod
    def of(cls, capacity: int) -> TreeShape:
        """Compute the shape for a number of leaves."""
        num_levels, width = 0, capacity
        while width > TOP_WIDTH:
            num_levels, width = num_levels + 1, -(-width // FAMILY)
        # Far enough from node 0 that the children of the first one lie after the last one.
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
