"""Reading files that other programs may have written, damaged or replaced.

Only regular files are read, so that a pipe in place of one does not hang the reader and a device
does not fill its memory; and never more of one than a limit.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from ding_lite.errors import kind_of


def read_file(
    path: str | os.PathLike[str], *, most: int, folder: int | None = None, follow: bool = True
) -> bytes:
    """Read a regular file of at most `most` bytes, as long as it was when it was opened.

    `folder` is the descriptor of the directory that a relative path is looked up in. OSError says
    that the file is missing, larger, no regular file, or cannot be read.
    """
    fd = open_file(path, folder=folder, follow=follow)
    with open(fd, "rb") as file:
        size = os.fstat(fd).st_size
        if size > most:
            raise OSError(
                errno.EFBIG, f"It has {size:,} bytes; at most {most:,} are read", str(path)
            )
        return file.read(size)


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
    """Read JSON, however it is broken; ValueError where it is none, or nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json_object(path: Path, *, most: int) -> dict[str, Any]:
    """Read a file that holds one JSON object; ValueError where it holds something else."""
    found = parse_json(read_file(path, most=most))
    if not isinstance(found, dict):
        raise ValueError(f"it holds {kind_of(found)}, and no JSON object")
    return found
