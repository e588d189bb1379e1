"""The directory of a checkpoint, which one process may read while another one saves to it.

A reader holds a shared lock on the directory from before it reads the manifest until it has read
the last file. A saver removes unused files only while it holds the lock exclusively, and otherwise
leaves that to its next save. Neither waits for the other, and the kernel releases the lock of a
process that was killed. Without locks, as on some network file systems, a reader that misses a
file finds a newer manifest, and reads that.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from ding_lite.errors import CheckpointError
from ding_lite.io.reading import open_file, read_file

MANIFEST = "manifest.json"
MANIFEST_BYTES = 1 << 30
"""The most bytes of a manifest; large arrays are not in it."""
ROOM_FOR_READERS = 64 << 20
"""Bytes of unused files that a reader may keep alive, if the checkpoint itself has fewer."""
_FILES = re.compile(r"(tensors-[0-9]{8,19}\.safetensors|rows-[0-9a-f]{40}\.bin)")


class Folder:
    """A checkpoint's directory, open for reading; CheckpointError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise self._missing(path / MANIFEST) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CheckpointError(
                f"The checkpoint in {path} cannot be read: {reason}. Give the directory that "
                f"`save_checkpoint` wrote."
            ) from error

    def __enter__(self) -> Self:
        # A saver that has the lock now removes files of older checkpoints only.
        with suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._fd)

    def manifest(self) -> bytes:
        """Read the manifest; CheckpointError where it is missing, or cannot be read."""
        with self._explained(MANIFEST):
            return read_file(MANIFEST, most=MANIFEST_BYTES, folder=self._fd)

    def read(self, name: object, *, most: int) -> bytes:
        """Read a file that the manifest names.

        Raises:
            CheckpointError: It is missing or too large, or no file of a checkpoint has such a name.
        """
        with self._explained(name):
            return read_file(_checked(name), most=most, folder=self._fd, follow=False)

    def read_into(self, name: object, target: memoryview) -> int:
        """Read a file that the manifest names into memory; return its size in bytes."""
        with self._explained(name):
            fd = open_file(_checked(name), folder=self._fd, follow=False)
            with open(fd, "rb", buffering=0) as file:
                size = os.fstat(fd).st_size
                if size > len(target):
                    raise OSError(errno.EFBIG, f"It has {size:,} bytes; {len(target):,} are left")
                done = 0
                while done < size and (count := file.readinto(target[done:size])):
                    done += count
                return done

    def size(self, name: object) -> int:
        """Return the size of a file that the manifest names, in bytes."""
        with self._explained(name):
            return os.stat(_checked(name), dir_fd=self._fd, follow_symlinks=False).st_size

    def damaged(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint in {self.path} is damaged: {what}. Take another one, or a copy of it."
        )

    def _missing(self, file: Path) -> CheckpointError:
        return CheckpointError(
            f"There is no checkpoint in {self.path}: {file} is missing. Give the directory that "
            f"`save_checkpoint` wrote."
        )

    @contextmanager
    def _explained(self, name: object) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise self._missing(self.path / str(name)) from error
        except OSError as error:
            reason = error.strerror
            if error.errno == errno.ELOOP:
                reason = "It is a symbolic link; put the file itself in its place"
            raise self.damaged(f"{name!r:.80} cannot be read ({reason})") from error


def _checked(name: object) -> str:
    if not isinstance(name, str) or not _FILES.fullmatch(name):
        raise OSError(errno.EINVAL, "No file of a checkpoint has such a name")
    return name


def _close(fd: int) -> None:
    """Release the lock and close; a child that was forked meanwhile holds the lock, too."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def remove_unused(path: Path, unused: Iterable[Path], used: Iterable[Path]) -> None:
    """Remove unused files, unless a reader may still need them.

    A suspended reader must not fill the disk: beyond the size of the checkpoint, and beyond 64
    MiB, files are removed in any case.
    """
    unused = list(unused)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _bytes_of(unused) <= max(ROOM_FOR_READERS, _bytes_of(used)):
                return
        except OSError:  # no locks here: see above
            pass
        remove(unused)
    finally:
        _close(fd)


def remove(files: Iterable[Path]) -> None:
    """Remove files; those that cannot be removed are left to the next save."""
    for file in files:
        with suppress(OSError):
            file.unlink()


def _bytes_of(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size
    return total
