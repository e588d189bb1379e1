"""Fail where the host waits for a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_waits() -> Iterator[None]:
    """Raise RuntimeError where the host waits for a GPU, or copies from it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that not every wait is found
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
