"""A copy of large values that may be sent while it is being made.

Who publishes may change the values as soon as the copy is there, and so has to wait for it; who
sends it needs the first megabyte at first. So either copies what is missing next, and finds
there what the other one has copied meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from ding_lite.parallel.pool import Pool, places

_PIECE_BYTES = 2**20
"""Bytes that are copied at a time: somebody else may wait for them."""


class Snapshot:
    """Copies of buffers, laid into one block of memory; at first nothing is copied.

    Args:
        sources: What is copied; it must not change before all of it is.
        pool: Where the memory is taken from.
    """

    def __init__(self, sources: Iterable[memoryview], pool: Pool) -> None:
        sources = [source for source in sources if source.nbytes]
        starts, nbytes = places(source.nbytes for source in sources)
        block = pool.allocate(nbytes)
        parts = zip(starts, sources, strict=True)
        copies = [block[start : start + source.nbytes] for start, source in parts]
        self.buffers = [copy.toreadonly() for copy in copies]
        """The copies."""
        self._missing = list(zip(copies, sources, strict=True))[::-1]
        self._done = 0
        self._is_copying = False
        self._changed = threading.Condition()

    def fill(self, nbytes: int | None = None) -> None:
        """Return when the first so many bytes are there, or all; safe from any thread."""
        if nbytes is not None and self._done >= nbytes:
            return
        with self._changed:
            while self._missing and (nbytes is None or self._done < nbytes):
                if self._is_copying:
                    self._changed.wait()
                else:
                    self._copy_a_piece()

    def _copy_a_piece(self) -> None:
        """Copy what is missing next, with the lock, which is given back meanwhile."""
        copy, source = self._missing[-1]
        self._is_copying = True
        try:
            self._changed.release()
            try:
                # numpy's copy lets other threads run meanwhile, unlike a memoryview's.
                np.copyto(
                    np.frombuffer(copy[:_PIECE_BYTES], np.uint8),
                    np.frombuffer(source[:_PIECE_BYTES], np.uint8),
                )
            finally:
                self._changed.acquire()
            rest = copy[_PIECE_BYTES:], source[_PIECE_BYTES:]
            self._missing[-1:] = [rest] if rest[0] else []
            self._done += copy.nbytes - rest[0].nbytes
        finally:
            self._is_copying = False
            self._changed.notify_all()
