"""Leave the groups of torch.distributed before Python ends.

Threads of gloo let go of the tensors of the last collective some time after it is over, and need
Python for that. One that comes too late, as Python is being taken down, aborts the process: a
program that has done all its work then ends with SIGABRT (PyTorch issue 190489).
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable
from multiprocessing import parent_process


def leave_groups_at_exit(let_go: Callable[[], None] | None = None) -> None:
    """End all groups of torch.distributed, and their threads, when the program ends.

    A process that another one has forked ends without taking Python down, and needs none of it.

    Args:
        let_go: Drops whatever handles the caller holds; a group lives as long as one of those.
    """
    if parent_process() is None:
        atexit.register(_leave, let_go)


def _leave(let_go: Callable[[], None] | None) -> None:
    import torch

    if let_go is not None:
        let_go()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    gc.collect()  # a wrapped network holds its group, and is part of a cycle
