"""Memory for large values that is used again: fresh memory costs more than what fills it."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes; where a block of memory begins is a multiple of it, so that any array may lie there."""

_LARGEST_MAPPED_BYTES = 32 * 2**20 - 2**16
"""The largest block from which glibc learns to keep more of what is freed; see `mallopt(3)`."""

_Block: TypeAlias = npt.NDArray[np.uint8]


class Pool:
    """Memory that is used again once nothing refers any more to what lies in it.

    Fresh memory costs several times what the copy into it costs, for the kernel clears it page
    by page.

    Args:
        max_free: Blocks that may wait for their next use; beyond that the oldest goes back to
            the system.
    """

    def __init__(self, max_free: int = 2) -> None:
        self._free: deque[_Block] = deque(maxlen=max_free)

    @property
    def num_free(self) -> int:
        """Blocks that wait for their next use."""
        return len(self._free)

    def allocate(self, nbytes: int) -> memoryview:
        """Return writable memory of that size."""
        block = self._block(nbytes)
        lease = block[:nbytes]
        weakref.finalize(lease, self._free.append, block).atexit = False
        return lease.data

    def _block(self, nbytes: int) -> _Block:
        with suppress(IndexError):  # another thread may take one meanwhile
            for _ in range(len(self._free)):
                block = self._free.popleft()
                if nbytes <= block.nbytes <= 2 * nbytes:
                    return block
                self._free.append(block)
        block = np.empty(nbytes + ALIGNMENT, np.uint8)
        return block[-block.ctypes.data % ALIGNMENT :]


def places(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Return where parts of these sizes begin in one block, and how large it must be."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return starts, end


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, up to 64 MiB, for the next message to lie in.

    The chunks of a large message wait in memory that ZeroMQ takes and frees. glibc gives all but
    2 MiB of it back to the system, so that each message would pay for fresh pages again; until it
    has freed a larger block, from which it learns. This is one, none of whose pages is touched.
    """
    np.empty(_LARGEST_MAPPED_BYTES, np.uint8)


def give_back_freed_memory() -> None:
    """Let glibc give all that is freed back to the system; elsewhere nothing happens.

    The opposite of `keep_freed_memory`, for after a flood of what nobody wanted.
    """
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
