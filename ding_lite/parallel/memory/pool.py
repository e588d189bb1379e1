"""A pool of memory for large values: fresh memory costs more than the copy into it."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Alignment of blocks in bytes, sufficient for any array."""
MAX_FREE = 2

_LARGEST_MAPPED_BYTES = 32 * 2**20 - 2**16
"""The largest block that raises glibc's threshold for keeping memory; see `mallopt(3)`."""

_Block: TypeAlias = npt.NDArray[np.uint8]


class Pool:
    """Memory blocks that are reused once nothing refers to them any more.

    Fresh memory costs several times as much as the copy into it, because the kernel clears it page
    by page. Of more than `MAX_FREE` free blocks the oldest is returned to the system.
    """

    def __init__(self) -> None:
        self.free: deque[_Block] = deque(maxlen=MAX_FREE)

    def allocate(self, nbytes: int) -> memoryview:
        block = self._block(nbytes)
        lease = block[:nbytes]
        weakref.finalize(lease, self.free.append, block).atexit = False
        return lease.data

    def _block(self, nbytes: int) -> _Block:
        with suppress(IndexError):  # another thread may take one meanwhile
            for _ in range(len(self.free)):
                block = self.free.popleft()
                if nbytes <= block.nbytes <= 2 * nbytes:
                    return block
                self.free.append(block)
        block = np.empty(nbytes + ALIGNMENT, np.uint8)
        return block[-block.ctypes.data % ALIGNMENT :]


def places(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Return the offsets of parts of these sizes in one block, and its size."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return starts, end


def parts(block: memoryview, starts: Sequence[int], sizes: Sequence[int]) -> Iterator[memoryview]:
    for start, size in zip(starts, sizes, strict=True):
        yield block[start : start + size]


def keep_freed_memory() -> None:
    """Make glibc keep up to 64 MiB of freed memory for the next message.

    The chunks of a large message wait in memory that ZeroMQ allocates and frees. glibc returns all
    but 2 MiB of it to the system, so each message would pay for fresh pages again. Freeing a larger
    block raises that threshold; this function does so without touching a page.
    """
    np.empty(_LARGEST_MAPPED_BYTES, np.uint8)


def give_back_freed_memory() -> None:
    """Make glibc return all freed memory, after a flood of messages; nothing without glibc."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
