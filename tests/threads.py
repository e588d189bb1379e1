"""Functions that run at the same time, each on a thread of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any


def together(*functions: Callable[[], Any]) -> list[Any]:
    """Return the results of all functions, or raise the first exception once all have ended."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [called.result() for called in [pool.submit(fn) for fn in functions]]


@contextmanager
def switching_often() -> Iterator[None]:
    """Let threads overtake each other at any line within a `with` block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
