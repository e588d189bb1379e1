"""Copying much memory, as fast as the machine can: one core alone does not keep it busy."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

SHARED_FROM = 8 * 2**20
"""Bytes from which on a second thread copies half; to start it takes as long as to copy 1 MiB."""

_Bytes: TypeAlias = npt.NDArray[np.uint8]


def copy_all(pairs: Iterable[tuple[_Bytes, _Bytes]]) -> None:
    """Copy arrays of bytes, each to its place; other threads run meanwhile.

    Args:
        pairs: Of each the place and what comes there, of one size.
    """
    pairs = list(pairs)
    num_bytes = sum(source.nbytes for _, source in pairs)
    helper = None
    if num_bytes >= SHARED_FROM and len(os.sched_getaffinity(0)) > 1:
        halves = [(source.nbytes // 2, place, source) for place, source in pairs]
        rest = [(place[half:], source[half:]) for half, place, source in halves]
        helper = threading.Thread(target=_copy, args=(rest,), name="ding_lite-copy", daemon=True)
        with suppress(RuntimeError):  # the interpreter is about to end, and starts none any more
            helper.start()
            pairs = [(place[:half], source[:half]) for half, place, source in halves]
    try:
        _copy(pairs)
    finally:
        if helper is not None and helper.ident is not None:
            helper.join()


def _copy(pairs: Iterable[tuple[_Bytes, _Bytes]]) -> None:
    for place, source in pairs:
        np.copyto(place, source)  # unlike the copy of a memoryview it lets go of the interpreter
