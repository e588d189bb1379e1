"""How much memory there is, before a replay takes it, and how much is taken."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from ding_lite.errors import ConfigError

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
_OWN_PAGES = Path("/proc/self/statm")


def machine_bytes() -> int:
    """Return how much memory this machine has, or this container may use, in bytes."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int(_CONTAINER_LIMIT.read_text())
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return installed
    return min(installed, limit)


def process_bytes() -> int:
    """Return how much memory this process has in use, in bytes: its resident set.

    Where the system does not tell that, it is the most that the process ever had.
    """
    try:
        return int(_OWN_PAGES.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check_fits(wanted_bytes: int, *, capacity: int, what: str) -> None:
    """Refuse a store that needs more memory than there is.

    The system hands out memory that it does not have, and ends a process that uses it, hours
    later. So it is better said before.

    Raises:
        ConfigError: If it is more; says what would fit.
    """
    there_is = machine_bytes()
    if wanted_bytes > there_is:
        most = capacity * there_is // wanted_bytes
        raise ConfigError(
            f"{what} of `capacity` {capacity:,} needs {wanted_bytes / 1e9:,.1f} GB of memory, but "
            f"this machine has {there_is / 1e9:,.1f} GB. At most {most:,} would fit."
        )
