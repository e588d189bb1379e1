"""Copy large memory with two threads: one core alone does not fill the memory bus."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

SHARED_FROM = 32 * 2**20
"""The least bytes for which a second thread copies half. Starting it and waiting for it takes as
long as copying 1 MiB on an idle machine, and several MiB on a busy one."""

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Buffer: TypeAlias = memoryview | _Bytes


def copy_all(pairs: Iterable[tuple[_Buffer, _Buffer]]) -> None:
    """Copy sources to destinations of the same sizes (given first), without the interpreter lock.

    After an interrupt no thread writes to the destinations any more.
    """
    both = [(np.frombuffer(to, np.uint8), np.frombuffer(source, np.uint8)) for to, source in pairs]
    num_bytes = sum(source.nbytes for _, source in both)
    if num_bytes < SHARED_FROM or len(os.sched_getaffinity(0)) == 1:
        _copy(both)
        return

    cut = [(place, source, len(place) // 2) for place, source in both]
    first = [(place[:half], source[:half]) for place, source, half in cut]
    rest = [(place[half:], source[half:]) for place, source, half in cut]
    helper = threading.Thread(target=_copy, args=(first,), name="ding_lite-copy", daemon=True)
    try:
        try:
            helper.start()
        except RuntimeError:  # the interpreter is shutting down
            _copy(first)
        _copy(rest)
    finally:
        if helper.ident is not None:
            helper.join()


def _copy(pairs: Iterable[tuple[_Bytes, _Bytes]]) -> None:
    for place, source in pairs:
        np.copyto(place, source)  # in contrast to a memoryview, it releases the interpreter lock
