"""The file of a trace, which all nodes of a machine write together.

Nodes start and end at any time, may be killed at any moment, and there may be no node that runs all
the time. So there are no parts that must be joined in the end: each record is appended to the file
by one system call, which the kernel keeps whole. A lock on the file, shared by all writers, tells a
process whether it is the only one: the first writer begins the file, the last one closes the JSON
array. The kernel releases the lock of a node that was killed. If the last node is killed, the
closing bracket is missing, which readers of this format allow.

Times are those of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any

_END = b"\n]\n"
_HEAD_BYTES = 4096
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class TraceFile:
    """A trace file that is open for writing.

    The file is begun anew, unless another process is writing it or it was begun after `since_ns`:
    then it belongs to the same job, and is appended to.
    """

    def __init__(self, path: Path, since_ns: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = _enter(path, since_ns)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record; raise OSError if there is no room."""
        os.write(self._fd, b",\n" + json.dumps(record).encode())

    def close(self) -> None:
        """Close the file; the last writer closes the array."""
        try:
            if _is_alone(self._fd):
                os.write(self._fd, _END)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # a forked child shares it
            os.close(self._fd)


def _enter(path: Path, since_ns: int) -> int:
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path, flags, 0o666)
        try:
            if _is_alone(fd):
                _begin(fd, since_ns)
            fcntl.flock(fd, fcntl.LOCK_SH)  # waits for a writer that begins or closes it now
            if not _is_closed(fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_alone(fd: int) -> bool:
    """Take the exclusive lock unless another process has a shared one; else release the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _begin(fd: int, since_ns: int) -> None:
    if _began_ns(fd) >= since_ns:
        if _is_closed(fd):
            os.ftruncate(fd, os.fstat(fd).st_size - len(_END))
        return
    head = {
        "name": "trace_began",
        "ph": "M",
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "args": {"ns": monotonic_ns(), "unix_ns": time_ns(), "boot": _boot()},
    }
    os.ftruncate(fd, 0)
    os.write(fd, b"[\n" + json.dumps(head).encode())


def _began_ns(fd: int) -> int:
    """Return when a file was begun; -1 for other files, and those of an earlier boot."""
    first = os.pread(fd, _HEAD_BYTES, 0).removeprefix(b"[\n").partition(b"\n")[0]
    with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
        head = json.loads(first.rstrip(b","))
        if head["name"] == "trace_began" and head["args"]["boot"] == _boot():
            return int(head["args"]["ns"])
    return -1


def _is_closed(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size >= len(_END) and os.pread(fd, len(_END), size - len(_END)) == _END


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
