"""Reading files that other programs may have written, damaged or replaced.

Only regular files are read, up to a size limit. So a pipe in place of a file does not hang the
reader, and a device does not fill its memory.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from ding_lite.errors import kind_of

_MAX_DEPTH = 64
"""Limit of the nested lists and objects of JSON, so that all of it can be formatted, too."""


def read_file(
    path: str | os.PathLike[str], *, most: int, folder: int | None = None, follow: bool = True
) -> bytes:
    """Read a regular file of at most `most` bytes, as long as it was when it was opened.

    A relative path is looked up in the directory with the descriptor `folder`. Raises OSError if
    the file is missing, larger, not a regular file, or cannot be read.
    """
    fd = open_file(path, folder=folder, follow=follow)
    with open(fd, "rb") as file:
        size = os.fstat(fd).st_size
        if size > most:
            raise OSError(
                errno.EFBIG, f"It has {size:,} bytes; at most {most:,} are read", str(path)
            )
        return file.read(size)


def read_end(path: str | os.PathLike[str], *, most: int) -> tuple[bytes, bool]:
    """Read the last `most` bytes of a regular file; return also whether they are all of it."""
    fd = open_file(path)
    with open(fd, "rb") as file:
        size = os.fstat(fd).st_size
        file.seek(max(0, size - most))
        return file.read(min(size, most)), size <= most


def open_file(
    path: str | os.PathLike[str], *, folder: int | None = None, follow: bool = True
) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags, dir_fd=folder)
    except ValueError as error:  # a NUL character
        raise OSError(errno.EINVAL, f"This is no name of a file ({error})", str(path)) from error
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "This is no regular file", str(path))


def parse_json(content: bytes) -> Any:  # noqa: ANN401 - any tree of values
    """Parse JSON; raise ValueError if it is invalid or nested too deeply."""
    try:
        found = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if content.count(b"[") + content.count(b"{") > _MAX_DEPTH and _is_deep(found):
        raise ValueError("it is nested too deeply")
    return found


def _is_deep(tree: object) -> bool:
    level = [tree]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for one in level
            if isinstance(one, dict | list)
            for child in (one.values() if isinstance(one, dict) else one)
        ]
    return any(isinstance(one, dict | list) for one in level)


def read_json_object(path: Path, *, most: int) -> dict[str, Any]:
    """Read a file that holds one JSON object; raise ValueError if it holds something else."""
    found = parse_json(read_file(path, most=most))
    if not isinstance(found, dict):
        raise ValueError(f"it holds {kind_of(found)}, and no JSON object")
    return found
