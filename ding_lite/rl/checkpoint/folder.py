"""The directory of a checkpoint, which one process may read while another one saves to it.

A reader holds a shared lock on the directory while it reads the manifest and all files. A saver
removes unused files only if it gets the lock exclusively; otherwise its next save removes them.
Neither waits for the other, and the kernel releases the lock of a killed process. Some network file
systems have no locks. There a reader that finds a file missing reads the newer manifest instead.
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
from ding_lite.io.memory import parsable_bytes
from ding_lite.io.reading import open_file, read_file

MANIFEST = "manifest.json"
MANIFEST_BYTES = 1 << 30
"""The maximum size of a manifest, in bytes; it does not contain large arrays."""
ROOM_FOR_READERS = 64 << 20
"""The bytes of unused files that are kept for readers, if the checkpoint itself has fewer."""
_FILES = re.compile(r"(tensors-[0-9]{8,19}\.safetensors|rows-[0-9a-f]{40}\.bin)")
_UNFINISHED = re.compile(r"\.(manifest|tensors|rows)[-0-9a-f]*\.unfinished-[0-9a-f]{16}\.tmp")


def files_in(directory: Path) -> set[Path]:
    """Return the files of tensors and arrays in a directory; other files there are the user's."""
    return {path for path in directory.glob("*") if _FILES.fullmatch(path.name)}


def unfinished_in(directory: Path) -> set[Path]:
    """Return the temporary files of saves that were killed or have failed."""
    return {path for path in directory.glob(".*") if _UNFINISHED.fullmatch(path.name)}


class Folder:
    """A checkpoint's directory, open for reading; CheckpointError if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise self._missing(path / MANIFEST) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CheckpointError(
                f"The checkpoint in {path} cannot be read: {reason}. Give the directory of a "
                f"checkpoint."
            ) from error

    def __enter__(self) -> Self:
        # A saver that has the lock now removes only files of older checkpoints.
        with suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._fd)

    def manifest(self) -> bytes:
        with self._explained(MANIFEST):
            return read_file(MANIFEST, most=parsable_bytes(MANIFEST_BYTES), folder=self._fd)

    def read(self, name: object, *, most: int) -> bytes:
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
        with self._explained(name):
            return os.stat(_checked(name), dir_fd=self._fd, follow_symlinks=False).st_size

    def damaged(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint in {self.path} is damaged: {what}. Take another one, or a copy of it."
        )

    def _missing(self, file: Path) -> CheckpointError:
        of_run = self.path / "checkpoint"
        meant = "the directory of a checkpoint"
        if (of_run / MANIFEST).exists():
            meant = f"that of the checkpoint, {of_run}"
        return CheckpointError(
            f"There is no checkpoint in {self.path}: {file} is missing. Give {meant}."
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
    """Release the lock and close; a process forked meanwhile also holds the lock."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def remove_unused(path: Path, unused: Iterable[Path], used: Iterable[Path]) -> None:
    """Remove unused files, unless a reader may still need them.

    A suspended reader must not fill the disk: files are removed anyway if they take more than the
    checkpoint itself and more than 64 MiB.
    """
    unused = list(unused)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _bytes_of(unused) <= max(ROOM_FOR_READERS, _bytes_of(used)):
                return
        except OSError:  # a file system without locks
            pass
        remove(unused)
    finally:
        _close(fd)


def remove(files: Iterable[Path]) -> None:
    """Remove files; the next save removes those that cannot be removed now."""
    for file in files:
        with suppress(OSError):
            file.unlink()


def _bytes_of(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size
    return total
