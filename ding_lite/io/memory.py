"""Measure free and used memory, and refuse large allocations that do not fit.

Linux grants memory that it does not have, and kills a process that uses it, maybe hours later. So
sizes are checked before anything is allocated.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ding_lite.errors import ConfigError

_MACHINE = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_PAGES = Path("/proc/self/statm")
_PARSED_PER_BYTE = 48
"""Bytes of memory for a byte of JSON: lists within each other take 45, rows of short names 31."""


def available_bytes() -> int:
    """Return how much more memory this process may allocate, in bytes.

    It is the minimum of the machine's available memory and of the rest of each limit: of its
    control groups (containers, batch systems) and of its address space (`ulimit -v`).
    """
    left = [_spare_bytes(), *_left_by_groups()]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        left.append(limit - _own_bytes(0))
    return max(0, min(left))


def parsable_bytes(most: int) -> int:
    """Return how many bytes of JSON, at most `most`, this process has the memory to parse."""
    return min(most, available_bytes() // _PARSED_PER_BYTE)


def process_bytes() -> int:
    """Return the memory that this process uses, in bytes: its resident set.

    If the system does not report it, this is the peak of the process.
    """
    try:
        return _own_bytes(1)
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check_fits(wanted_bytes: int, *, what: str, **option: object) -> None:
    """Refuse an allocation of more memory than is available.

    `option` is the setting that makes it large; the error names it, and a value that fits.
    """
    available = available_bytes()
    if wanted_bytes <= available:
        return
    [(name, value)] = option.items()
    shown = f"{value:,}" if isinstance(value, int) else f"{value}"
    advice = f"Lower `{name}`."
    if isinstance(value, int):
        most = value * available // wanted_bytes
        advice = f"At most {most:,} would fit." if most else "Nothing of that kind would fit."
    raise ConfigError(
        f"{what} with `{name}` {shown} needs {_format(wanted_bytes)} of memory, but this machine "
        f"has {_format(available)} to spare. {advice}"
    )


def _format(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count < 10**18 else "more than 1,000,000,000 GB"


def _own_bytes(column: int) -> int:
    return int(_OWN_PAGES.read_text().split()[column]) * os.sysconf("SC_PAGE_SIZE")


def _spare_bytes() -> int:
    """Return the memory available without swapping, or else all memory of the machine."""
    with suppress(OSError):
        if found := re.search(r"^MemAvailable:\s+(\d+) kB$", _MACHINE.read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_by_groups() -> Iterator[int]:
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if controllers == "":  # version 2
            root, names = _GROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = _GROUPS / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = root / own.strip("/")
        for one in (group, *group.parents):
            left = _left_by_group(one, *names)
            if left is not None:
                yield left
            if one == root:
                break


def _left_by_group(group: Path, limit: str, usage: str, cache: str) -> int | None:
    """Return the remaining memory of one control group; None without a readable limit."""
    try:
        most = int((group / limit).read_text())
        used = int((group / usage).read_text())
        statistics = (group / "memory.stat").read_text()
    except (OSError, ValueError):  # "max" means no limit
        return None
    found = re.search(rf"^{cache} (\d+)$", statistics, re.MULTILINE)
    return most - used + (int(found[1]) if found else 0)  # cached files can be evicted
