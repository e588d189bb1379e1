"""How much memory there is, before a replay takes it."""

from __future__ import annotations

import os
from pathlib import Path

from ding_lite.errors import ConfigError

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine_bytes() -> int:
    """Return how much memory this machine has, or this container may use, in bytes."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int(_CONTAINER_LIMIT.read_text())
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return installed
    return min(installed, limit)


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
