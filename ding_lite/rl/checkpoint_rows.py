"""Large arrays of a checkpoint, cut into files that are named by what they hold.

A replay of a million transitions changes little from one save to the next. So an array is cut
along its first axis, each part goes into a file named by a hash of its bytes, and a part that
lies there already is not written again: a save costs what has changed, and no file that an
older checkpoint needs is ever touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ding_lite.errors import CheckpointError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

LARGE_BYTES = 1 << 20
"""From this size on an array is cut into files of its own."""
PART_BYTES = 4 << 20
"""About what a file holds. Smaller ones save more of what has not changed."""
_PREFIX, _SUFFIX = "rows-", ".bin"
_DIGEST_BYTES = 20


class Rows:
    """Writes the large arrays of one checkpoint.

    Args:
        directory: Where the files lie.
        write: Puts a file in place, whole or not at all.
    """

    def __init__(self, directory: Path, write: Callable[[Path, memoryview], None]) -> None:
        self._directory = directory
        self._write = write
        self._there = files_in(directory)
        self.used: set[Path] = set()
        """The files that the checkpoint consists of."""
        self.written: set[Path] = set()
        """Those of them that were not there before."""

    def save(self, array: Array) -> dict[str, Any]:
        """Write what is not there yet; return what `load_rows` needs.

        Raises:
            OSError: The disk refuses.
        """
        array = np.ascontiguousarray(array)
        row_bytes = max(1, array.nbytes // max(1, len(array)))
        step = max(1, PART_BYTES // row_bytes)
        names = []
        for start in range(0, len(array), step):
            content = array[start : start + step].data.cast("B")
            names.append(f"{_PREFIX}{_hash(content)}{_SUFFIX}")
            self._save_part(self._directory / names[-1], content)
        return {"dtype": array.dtype.str, "shape": list(array.shape), "files": names}

    def _save_part(self, path: Path, content: memoryview) -> None:
        self.used.add(path)
        if path not in self._there and path not in self.written:
            self._write(path, content)
            self.written.add(path)


def load_rows(directory: Path, entry: object) -> Array:
    """Read an array that `Rows.save` wrote.

    Raises:
        CheckpointError: A file has changed, or the entry is none.
        FileNotFoundError: A file is missing.
    """
    match entry:
        case {"dtype": str(code), "shape": [*shape], "files": [*names]}:
            array = np.empty([int(side) for side in shape], dtype=np.dtype(code))
        case _:
            raise CheckpointError(f"The checkpoint in {directory} describes no array: {entry!r}.")
    target = array.data.cast("B")
    start = 0
    for content in _contents(directory, names):
        end = start + len(content)
        if end > len(target):
            break
        target[start:end] = content
        start = end
    if start != array.nbytes:
        raise CheckpointError(
            f"The checkpoint in {directory} is damaged: an array of {array.nbytes} bytes has "
            f"files of another size."
        )
    return array


def _contents(directory: Path, names: list[Any]) -> Iterator[bytes]:
    for name in names:
        content = (directory / str(name)).read_bytes()
        if f"{_PREFIX}{_hash(content)}{_SUFFIX}" != name:
            raise CheckpointError(f"The checkpoint in {directory} is damaged: {name} has changed.")
        yield content


def files_in(directory: Path) -> set[Path]:
    """Return the files of large arrays that lie in a directory."""
    return set(directory.glob(f"{_PREFIX}*{_SUFFIX}"))


def _hash(content: memoryview | bytes) -> str:
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
