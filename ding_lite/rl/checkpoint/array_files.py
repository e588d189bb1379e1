"""Large arrays of a checkpoint, as content-addressed files.

A replay of a million transitions changes little between two saves. So an array is divided along its
first axis, and each part is written to a file that is named by a hash of its bytes, unless that
file exists. A save writes only changed parts, and never changes a file of an older checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ding_lite.errors import CheckpointError
from ding_lite.io.dtypes import SAVED_DTYPES, has_only_flags
from ding_lite.rl.checkpoint.folder import Folder, files_in

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

LARGE_BYTES = 1 << 20
"""The size, in bytes, from which on an array is saved in separate files."""
PART_BYTES = 4 << 20
"""The approximate size of a file. With smaller files a save writes less unchanged data."""
_PREFIX, _SUFFIX = "rows-", ".bin"
_MAX_NDIM = 32


class ArrayWriter:
    """Writes the large arrays of one checkpoint; `write` writes a file atomically."""

    def __init__(self, directory: Path, write: Callable[[Path, memoryview], None]) -> None:
        self._directory = directory
        self._write = write
        self._there = files_in(directory)
        self.used: set[Path] = set()
        """The files of the checkpoint."""
        self.written: set[Path] = set()

    def save(self, array: Array) -> dict[str, Any]:
        """Write the parts that have no file yet; return the entry for `ArrayReader`."""
        array = np.ascontiguousarray(array)
        row_bytes = max(1, array.nbytes // max(1, len(array)))
        step = max(1, PART_BYTES // row_bytes)
        names = []
        for start in range(0, len(array), step):
            content = array[start : start + step].data.cast("B")
            names.append(_name_of(content))
            path = self._directory / names[-1]
            self.used.add(path)
            if path not in self._there and path not in self.written:
                self._write(path, content)
                self.written.add(path)
        return {"dtype": array.dtype.str, "shape": list(array.shape), "files": names}


class ArrayReader:
    """Reads the arrays of one checkpoint, of at most `most` bytes together.

    At most half of them may come from files that were read before: arrays of equal numbers share
    files, but a small checkpoint could name one file any number of times.
    """

    def __init__(self, folder: Folder, *, most: int) -> None:
        self._folder = folder
        self._room, self._room_again = most, most // 2
        self._sizes: dict[str, int] = {}

    def load(self, entry: object) -> Array:
        """Read an array that `ArrayWriter.save` wrote."""
        folder = self._folder
        shape, dtype, names = _described(folder, entry)
        nbytes = math.prod(shape) * dtype.itemsize  # Python integers, which do not overflow
        again = 0
        for name in names:
            again += self._sizes.get(name, 0)
            if name not in self._sizes:
                self._sizes[name] = folder.size(name)
        if nbytes != sum(self._sizes[name] for name in names):
            raise folder.damaged(f"an array of {nbytes:,} bytes has files of another size")
        for wanted, room in ((nbytes, self._room), (again, self._room_again)):
            if wanted > room:
                raise CheckpointError(
                    f"An array of the checkpoint in {folder.path} has {wanted:,} bytes, and there "
                    f"is memory for {room:,}. Load it on a larger machine, or without that array "
                    f"(`only`)."
                )
        self._room -= nbytes
        self._room_again -= again
        flat: npt.NDArray[np.uint8] = np.empty(nbytes, np.uint8)
        start = 0
        for name in names:
            size = folder.read_into(name, flat[start:].data)
            if _name_of(flat[start : start + size].data) != name:
                raise folder.damaged(f"{name} has changed")
            start += size
        if start != nbytes:
            raise folder.damaged("the files of an array have changed while they were read")
        if dtype.kind == "b" and not has_only_flags(flat):
            raise folder.damaged("an array of booleans holds bytes beside 0 and 1")
        return flat.view(dtype).reshape(shape)


def _described(folder: Folder, entry: object) -> tuple[list[int], np.dtype[Any], list[str]]:
    match entry:
        case {"dtype": str(code), "shape": [*shape], "files": [*names]}:
            dtype = SAVED_DTYPES.get(code)
        case _:
            raise folder.damaged(f"{entry!r:.80} describes no array")
    if dtype is None:
        raise folder.damaged(
            f"an array has the dtype {code!r:.20}; one of numbers or booleans, such as '<f4', was "
            f"expected"
        )
    if not 0 < len(shape) <= _MAX_NDIM or any(type(n) is not int or n < 1 for n in shape):
        raise folder.damaged(f"an array has the shape {shape!r:.80}")
    if any(type(name) is not str for name in names):
        raise folder.damaged(f"an array has the files {names!r:.80}")
    return shape, dtype, names


def _name_of(content: memoryview) -> str:
    return f"{_PREFIX}{blake2b(content, digest_size=20).hexdigest()}{_SUFFIX}"
