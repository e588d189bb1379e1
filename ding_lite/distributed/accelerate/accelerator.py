"""Make Hugging Face Accelerate's `Accelerator`, in one of several processes or a single one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch

from ding_lite.errors import ConfigError, MissingExtraError, PeerLost, pip_line
from ding_lite.parallel.launch.environment import number
from ding_lite.parallel.network.address import LOOPBACK
from ding_lite.parallel.network.interfaces import interface_beyond
from ding_lite.settings.environment import process_environ, suggest_environ


def find_accelerator(given: Any, timeout: float) -> Any:  # noqa: ANN401 - it comes without types
    """Return the given accelerator, or make one; raise if it lacks processes that were started."""
    module = _import_accelerate()
    environ = process_environ()
    _choose_interface(environ.get("MASTER_ADDR") or LOOPBACK)
    accelerator = given or _make_accelerator(module, environ, timeout)
    _check_is_as_started(int(accelerator.num_processes), environ)
    return accelerator


def _import_accelerate() -> Any:  # noqa: ANN401 - Accelerate comes without types
    try:
        return importlib.import_module("accelerate")
    except ImportError as error:
        raise MissingExtraError(
            f"This needs Hugging Face Accelerate, which is not installed: {pip_line('accelerate')}."
        ) from error


def _choose_interface(first: str) -> None:
    """Make gloo use the interface that leads to the first machine, not that of the host name."""
    with suppress(OSError, UnicodeError):  # no such host: torch itself says so, and waits for it
        if (name := interface_beyond(first)) is not None:
            suggest_environ("GLOO_SOCKET_IFNAME", name)


def _make_accelerator(module: Any, environ: Mapping[str, str], timeout: float) -> Any:  # noqa: ANN401
    _check_place(environ)
    wait = module.InitProcessGroupKwargs(timeout=timedelta(seconds=timeout))
    try:
        return module.Accelerator(cpu=not torch.cuda.is_available(), kwargs_handlers=[wait])
    except torch.distributed.DistError as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise PeerLost(
            f"Rank {environ.get('RANK')} of {environ.get('WORLD_SIZE')} has not met the others at "
            f"{environ.get('MASTER_ADDR')}, port {environ.get('MASTER_PORT', 29500)}, within "
            f"{timeout:g} s ({why}). Start each rank once, with the address of rank 0 "
            f"and a port that is free there."
        ) from error


def _check_place(environ: Mapping[str, str]) -> None:
    size, rank = number(environ, "WORLD_SIZE") or 1, number(environ, "RANK")
    if rank is None and size == 1:
        return
    is_placed = rank is not None and rank < size
    if not is_placed or (size > 1 and not environ.get("MASTER_ADDR")):
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
        found = (f"`{name}` is {environ.get(name) or 'not set'}" for name in names)
        raise ConfigError(
            f"{', '.join(found)}; a rank below the number of processes was expected, and the "
            f"address of rank 0 if there are several. Start them with `torchrun --nproc-per-node "
            f"2 program.py`, which sets all of these, or unset all for a single process."
        )


def _check_is_as_started(size: int, environ: Mapping[str, str]) -> None:
    if size > 1:
        return
    num_started = number(environ, "WORLD_SIZE") or 1
    if num_started > 1:
        raise ConfigError(
            f"This is one of {num_started} processes, and the accelerator that was given "
            f"knows of none but itself. Make it with `Accelerator(cpu=True)` where there is no "
            f"GPU, or leave it to `Processes()`."
        )
    if "ACCELERATE_MIXED_PRECISION" in environ and "MASTER_PORT" in environ:
        raise ConfigError(
            "`accelerate launch` was told to start several processes and has started one, as it "
            "does for a job without GPUs. Start two with `torchrun --nproc-per-node 2 program.py`, "
            "or with `accelerate launch --multi_gpu --num_processes 2 program.py`, which needs no "
            "GPU in spite of its name."
        )
