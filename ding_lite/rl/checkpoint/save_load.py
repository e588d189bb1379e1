"""Checkpoints: a tree of tensors, arrays and plain values in a directory.

Tensors are saved in a safetensors file, large arrays in files of their own, and everything else in
`manifest.json`, which also names those files. A save writes new files beside the old ones, and then
replaces the manifest by one atomic rename, so that the directory always contains one complete
checkpoint, the old or the new one. Nothing is pickled, so loading runs no code from the file.
"""

from __future__ import annotations

import math
import os
import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.numpy import save as save_arrays
from safetensors.torch import save
from torch import Tensor

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.errors import CheckpointError, SaveError, kind_of
from ding_lite.io.dtypes import SAVED_DTYPES
from ding_lite.io.files import new_beside
from ding_lite.nest import num_composed
from ding_lite.rl.checkpoint.array_files import LARGE_BYTES, ArrayWriter
from ding_lite.rl.checkpoint.folder import (
    MANIFEST as MANIFEST,
    MANIFEST_BYTES,
    Folder,
    files_in,
    remove,
    remove_unused,
    unfinished_in,
)
from ding_lite.rl.checkpoint.reading import (
    FORMAT_VERSION,
    MAX_COMPOSED,
    MAX_DEPTH,
    MOST_BITS,
    Checkpoint as Checkpoint,
    KeySelection,
    Manifest,
    ManifestBody,
    Tree,
    is_key,
    read_checkpoint,
)

_MOST_INT = 2**63 - 1
_TEXTS = {"$bytes": bytes, "$device": torch.device, "$dtype": torch.dtype}
"""The types with values that are saved as texts in the manifest, by their tags."""
LOCK_TIMEOUT_S = 60.0
"""Seconds of retries with newer checkpoints, if a run saves faster than they can be read."""


def save_checkpoint(
    directory: str | os.PathLike[str], state: Tree, *, meta: Mapping[str, Any] | None = None
) -> Path:
    """Save a tree; the previous checkpoint is kept until the new one is complete.

    Args:
        directory: The directory, which is created if it does not exist.
        state: Dicts, lists, tuples and deques of tensors, numpy arrays and scalars, numbers,
            texts, bytes, booleans, None, and devices and dtypes of PyTorch, such as a policy's
            `state_dict()` or an optimiser's. Keys, and members of sets, are texts, numbers,
            booleans, None, or at most 20,000 tuples of these.
        meta: Plain values besides the state, such as counters and settings.

    Returns:
        The manifest's path.

    Raises:
        CheckpointError: If a value cannot be saved.
        SaveError: If the files cannot be written.
    """
    path = Path(directory)
    rows = ArrayWriter(path, _write_atomically)
    old_files = files_in(path)
    numbers = (file.stem.partition("-")[2] for file in old_files if file.suffix == ".safetensors")
    newest = max(map(int, numbers), default=0)
    old_files |= unfinished_in(path)
    tensors_file = path / f"tensors-{newest + 1:08d}.safetensors"
    encoded = b""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tree = _Tree(rows)
        plain_state = tree.plain(state, "state")
        plain_meta = tree.plain(dict(meta or {}), "meta")
        payload = _file_of(tree.tensors)
        body = msgspec.json.encode(
            ManifestBody(plain_state, plain_meta, tensors_file.name, zlib.crc32(payload))
        )
        manifest = Manifest(FORMAT_VERSION, zlib.crc32(body), msgspec.Raw(body))
        encoded = msgspec.json.encode(manifest)
        if len(encoded) > MANIFEST_BYTES:
            raise CheckpointError(
                f"The plain values of the checkpoint take {len(encoded):,} bytes; at most "
                f"{MANIFEST_BYTES:,} are read again. Save long lists of numbers as arrays."
            )
        _write_atomically(tensors_file, payload)
        _write_atomically(path / MANIFEST, encoded)
    except BaseException as error:
        remove(unfinished_in(path))  # a partial file would keep a full disk full
        if not _holds(path / MANIFEST, encoded):
            remove([*rows.written, tensors_file])
        if isinstance(error, CheckpointError) or not isinstance(error, OSError):
            raise
        raise SaveError(
            f"The checkpoint could not be written to {path}: {error}. A checkpoint that was "
            f"there before is still whole."
        ) from error

    remove_unused(path, old_files - rows.used, {*rows.used, tensors_file})
    return path / MANIFEST


def check_saveable(state: Tree, name: str) -> None:
    """Raise unless a checkpoint can contain a tree; nothing is written."""
    _Tree(None).plain(state, name)


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def load_checkpoint(
    directory: str | os.PathLike[str], *, only: KeySelection = None, clock: Clock = SYSTEM_CLOCK
) -> Checkpoint:
    """Load a checkpoint, even while a run saves the next one to the same directory.

    Args:
        directory: The directory of the checkpoint.
        only: The keys of the tree's first level to load, or a function that chooses them by the
            `meta`; large arrays of other keys are not read. All keys by default.
        clock: The clock for the time of retries.

    Raises:
        CheckpointError: If there is no checkpoint, it is damaged, or another version wrote it.
    """
    path = Path(directory)
    give_up = clock.now() + LOCK_TIMEOUT_S
    while True:
        with Folder(path) as folder:
            manifest = folder.manifest()
            try:
                return read_checkpoint(folder, manifest, only)
            except CheckpointError:
                is_newest = folder.manifest() == manifest
                if is_newest or clock.now() > give_up:
                    raise


@dataclass
class _Tree:
    rows: ArrayWriter | None
    """Writes large arrays; with None values are only checked."""
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def plain(self, value: Tree, name: str, depth: int = 1) -> Tree:
        """Replace arrays by references and tuples by tagged lists, for JSON."""
        if value is None or isinstance(value, bool | int | float | str):
            return _plain_value(value, name)
        if isinstance(value, bytes | torch.device | torch.dtype):
            tag = next(tag for tag, kind in _TEXTS.items() if isinstance(value, kind))
            return {tag: value.hex() if isinstance(value, bytes) else str(value)}
        if isinstance(value, complex | Tensor | np.ndarray | np.generic):
            return self._numbers(value, name, depth)
        if depth > MAX_DEPTH:
            raise CheckpointError(
                f"`{name[:80]}...` lies within {MAX_DEPTH} dicts, lists and tuples; a checkpoint "
                f"is not deeper than that. Save a flatter tree."
            )
        return self._container(value, name, depth)

    def _numbers(
        self, value: complex | Tensor | np.ndarray[Any, Any] | np.generic, name: str, depth: int
    ) -> Tree:
        if isinstance(value, complex | np.complexfloating):
            parts = float(value.real), float(value.imag)
            return {"$complex": [_plain_value(part, name) for part in parts]}
        if (real := _as_real(value)) is not None:
            return {"$complex": self.plain(real, name, depth + 1)}
        if isinstance(value, np.ndarray) and value.nbytes >= LARGE_BYTES and value.ndim:
            _check_numbers(value, name)
            return {"$rows": None if self.rows is None else self.rows.save(value)}
        while name in self.tensors:  # {"a": {"b": x}, "a.b": y}
            name += "'"
        self.tensors[name] = _tensor(value, name)
        kinds = {Tensor: "$tensor", np.ndarray: "$array", np.generic: "$scalar"}
        return {next(tag for kind, tag in kinds.items() if isinstance(value, kind)): name}

    def _container(self, value: Tree, name: str, depth: int) -> Tree:
        if isinstance(value, list | tuple):
            items = [self.plain(item, f"{name}.{i}", depth + 1) for i, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        if isinstance(value, set | frozenset | Mapping) and num_composed(value) > MAX_COMPOSED:
            raise CheckpointError(
                f"`{name}` has {num_composed(value):,} tuples in it or for keys; at most "
                f"{MAX_COMPOSED:,} are read again. Save a list of the tuples, and one of the "
                f"values."
            )
        if isinstance(value, set | frozenset):
            items = [self._key(item, name, depth + 1) for item in value]
            return {"$set" if isinstance(value, set) else "$frozenset": items}
        if isinstance(value, deque):
            return {"$deque": [value.maxlen, self.plain(list(value), name, depth + 1)]}
        if isinstance(value, Mapping):
            items = [
                (self._key(key, name, depth + 1), self.plain(item, f"{name}.{key}", depth + 1))
                for key, item in value.items()
            ]
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return dict(items)
            return {"$dict": items}
        raise CheckpointError(
            f"`{name}` is {kind_of(value)}, which a checkpoint cannot hold. Save tensors, "
            f"arrays, numbers, texts, and dicts, lists and tuples of them."
        )

    def _key(self, key: object, name: str, depth: int) -> Tree:
        if isinstance(key, np.generic):
            key = key.item()  # an equal value with the same hash
        if not is_key(key):
            raise CheckpointError(
                f"`{name}` has the key {key!r:.80}; texts, numbers, booleans, None and tuples of "
                f"these were expected."
            )
        return self.plain(key, f"{name}[...]", depth)


def _plain_value(value: bool | float | str | None, name: str) -> Tree:
    """Return a value for JSON, which has no infinity and no integer of more than 64 bits."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise CheckpointError(
                f"`{name!r}` is a text that UTF-8 cannot hold ({error}). Save it as bytes in an "
                f"array of uint8."
            ) from error
        return str.__str__(value)  # of a text that is an Enum, not the name of the member
    if isinstance(value, int):
        if value.bit_length() > MOST_BITS:
            raise CheckpointError(
                f"`{name}` is an integer of {value.bit_length():,} bits, and a checkpoint holds "
                f"those of up to {MOST_BITS:,}. Save its bytes."
            )
        return int(value) if abs(value) <= _MOST_INT else {"$int": hex(value)}
    return float(value) if math.isfinite(value) else {"$float": str(float(value))}


def _as_real(value: object) -> Tensor | np.ndarray[Any, Any] | None:
    """Return complex numbers as pairs, [..., 2]; None if safetensors takes the numbers as is."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "c":
        return np.stack([value.real, value.imag], axis=-1)
    if not isinstance(value, Tensor) or not value.is_complex() or value.dtype == torch.complex64:
        return None
    is_dense = value.layout == torch.strided and not value.is_meta
    return torch.view_as_real(value.detach().resolve_conj()) if is_dense else None


def _check_numbers(array: np.ndarray[Any, Any], name: str) -> None:
    if array.dtype.str not in SAVED_DTYPES:
        raise CheckpointError(
            f"`{name}` is an array of {array.dtype}, which a checkpoint cannot hold. Save "
            f"numbers or booleans."
        )


def _tensor(value: Tensor | np.ndarray[Any, Any] | np.generic, name: str) -> Tensor:
    """Return a copy as a tensor, so that views of one tensor are saved separately."""
    if not isinstance(value, Tensor):
        array = np.array(value)
        _check_numbers(array, name)
        value = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        what = "without values, on the device `meta`" if value.is_meta else f"and {value.layout}"
        raise CheckpointError(
            f"`{name}` is a tensor of {value.dtype} {what}, which a checkpoint cannot hold. Save a "
            f"dense one of numbers or booleans."
        )
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def _file_of(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the content of a safetensors file.

    Its own `save` of tensors makes a type of ctypes for each new size, and Python keeps such types:
    5 KB for each array of a run that grows, at each save.
    """
    try:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    except TypeError:  # numpy has no bfloat16
        return save({**tensors})
    return save_arrays(arrays)


def _write_atomically(path: Path, content: bytes | memoryview) -> None:
    temporary, handle = new_beside(path.with_suffix(".tmp"))
    with open(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
