"""Copy large memory with two threads: one core alone does not fill the memory bus."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

SHARED_FROM = 8 * 2**20
"""Bytes from which on a second thread copies half; starting it takes as long as copying 1 MiB."""

_Bytes: TypeAlias = npt.NDArray[np.uint8]


def copy_all(pairs: Iterable[tuple[_Bytes, _Bytes]]) -> None:
    """Copy arrays of bytes, each to its place; other threads run meanwhile.

    If it is interrupted, no thread writes to the places any more.

    Args:
        pairs: Destination and source, of one size.
    """
    pairs = list(pairs)
    num_bytes = sum(source.nbytes for _, source in pairs)
    if num_bytes < SHARED_FROM or len(os.sched_getaffinity(0)) == 1:
        _copy(pairs)
        return

    cut = [(place, source, len(place) // 2) for place, source in pairs]
    first = [(place[:half], source[:half]) for place, source, half in cut]
    rest = [(place[half:], source[half:]) for place, source, half in cut]
    helper = threading.Thread(target=_copy, args=(first,), name="ding_lite-copy", daemon=True)
    try:
        try:
            helper.start()
        except RuntimeError:  # the interpreter is about to end, and starts none any more
            _copy(first)
        _copy(rest)
    finally:
        if helper.ident is not None:
            helper.join()


def _copy(pairs: Iterable[tuple[_Bytes, _Bytes]]) -> None:
    for place, source in pairs:
        np.copyto(place, source)  # unlike the copy of a memoryview it lets go of the interpreter
