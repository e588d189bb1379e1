"""Checkpoints: a tree of tensors, arrays and plain values in a directory.

The numbers go into a safetensors file, large arrays into files of their own, and everything
else into `manifest.json`, which also names those files. Saving writes new files beside the old
ones, and then puts the new manifest in place with one atomic rename: at every moment the
directory holds one whole checkpoint, the old or the new. Nothing is pickled, so loading runs
no code from the file.
"""

from __future__ import annotations

import contextlib
import math
import os
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ding_lite.errors import CheckpointError
from ding_lite.rl.checkpoint_rows import LARGE_BYTES, Rows, files_in, load_rows

Tree: TypeAlias = Any
"""Nested dicts, lists and tuples of what a checkpoint can hold."""

FORMAT_VERSION = 2
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What `load_checkpoint` found."""

    state: Tree
    """The tree that was saved, tensors as tensors and arrays as arrays."""
    meta: dict[str, Any]
    """What was said about it."""


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    """The manifest's content."""

    state: Tree
    meta: Tree
    tensors_file: str
    tensors_crc32: int


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """The manifest's outermost layer, which tells whether the inner one is whole."""

    format_version: int
    body_crc32: int
    body: msgspec.Raw


def save_checkpoint(
    directory: str | os.PathLike[str], state: Tree, *, meta: Mapping[str, Any] | None = None
) -> Path:
    """Save a tree; what the directory held before is kept until the new one is whole.

    Args:
        directory: Made if it does not exist.
        state: Dicts with text keys, lists and tuples of tensors, numpy arrays, numbers, texts,
            booleans and None, such as a policy's `state_dict()`.
        meta: Plain values to find again without a look at the state: counters, settings.

    Returns:
        The manifest's path.

    Raises:
        CheckpointError: If a value cannot be saved, or the disk refuses.
    """
    path = Path(directory)
    rows = Rows(path, _write_atomically)
    old_tensors = set(path.glob("tensors-*.safetensors"))
    old_files = files_in(path) | old_tensors | set(path.glob("*.tmp"))
    encoded = b""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tree = _Tree(rows)
        plain_state = tree.plain(state, "state")
        plain_meta = tree.plain(dict(meta or {}), "meta")
        payload = save(tree.tensors)
        tensors_file = _next_name(old_tensors)
        body = msgspec.json.encode(
            _Body(plain_state, plain_meta, tensors_file, zlib.crc32(payload))
        )
        manifest = _Manifest(FORMAT_VERSION, zlib.crc32(body), msgspec.Raw(body))
        encoded = msgspec.json.encode(manifest)
        _write_atomically(path / tensors_file, payload)
        _write_atomically(path / MANIFEST, encoded)
    except BaseException as error:
        _remove(path.glob("*.tmp"))  # half a file would only keep a full disk full
        if not _holds(path / MANIFEST, encoded):
            _remove(rows.written)
        if not isinstance(error, OSError):
            raise
        raise CheckpointError(
            f"The checkpoint could not be written to {path}: {error}. A checkpoint that was "
            f"there before is still whole."
        ) from error

    _remove(old_files - rows.used)
    return path / MANIFEST


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):  # the next save tries again
            file.unlink()


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def load_checkpoint(
    directory: str | os.PathLike[str], *, only: Collection[str] | None = None
) -> Checkpoint:
    """Read what `save_checkpoint` wrote.

    Args:
        directory: Where it lies.
        only: The keys of the tree's first level that are wanted; the large arrays of others are
            not read. All by default.

    Raises:
        CheckpointError: If there is none, it is damaged, or another version wrote it.
    """
    path = Path(directory)
    try:
        manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=_Manifest)
        _check_version(manifest.format_version, path)
        if zlib.crc32(manifest.body) != manifest.body_crc32:
            raise CheckpointError(f"The checkpoint in {path} is damaged: {MANIFEST} has changed.")
        body = msgspec.json.decode(manifest.body, type=_Body)
        payload = (path / body.tensors_file).read_bytes()
        if zlib.crc32(payload) != body.tensors_crc32:
            raise CheckpointError(
                f"The checkpoint in {path} is damaged: {body.tensors_file} has changed."
            )
        tensors, state = load(payload), body.state
        if only is not None:
            state = {key: state[key] for key in state if key in only}
        return Checkpoint(_restore(state, tensors, path), _restore(body.meta, tensors, path))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"There is no checkpoint in {path}: {error.filename} is missing. Give the directory "
            f"that `save_checkpoint` wrote."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise CheckpointError(f"The checkpoint in {path} is damaged: {error}.") from error


@dataclass
class _Tree:
    """What becomes of a tree when it is saved."""

    rows: Rows
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def plain(self, value: Tree, name: str) -> Tree:
        """Replace arrays by references and tuples by tagged lists, for JSON."""
        if isinstance(value, float) and not math.isfinite(value):
            raise CheckpointError(
                f"`{name}` is {value}, which JSON cannot hold. Save it as an array, or leave it "
                f"out."
            )
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.ndarray) and value.nbytes >= LARGE_BYTES and value.ndim:
            _check_numbers(value, name)
            return {"$rows": self.rows.save(value)}
        if isinstance(value, Tensor | np.ndarray | np.generic):
            self.tensors[name] = _tensor(value, name)
            return {"$tensor" if isinstance(value, Tensor) else "$array": name}
        if isinstance(value, list | tuple):
            items = [self.plain(item, f"{name}.{i}") for i, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str) or key.startswith("$"):
                    raise CheckpointError(
                        f"`{name}` has the key {key!r}; texts that do not begin with $ were "
                        f"expected."
                    )
            return {key: self.plain(item, f"{name}.{key}") for key, item in value.items()}
        raise CheckpointError(
            f"`{name}` is a {type(value).__name__}, which a checkpoint cannot hold. Save tensors, "
            f"arrays, numbers, texts, and dicts, lists and tuples of them."
        )


def _check_numbers(array: np.ndarray[Any, Any], name: str) -> None:
    if array.dtype.kind not in "biuf":
        raise CheckpointError(
            f"`{name}` is an array of {array.dtype}, which a checkpoint cannot hold. Save "
            f"numbers or booleans."
        )


def _tensor(value: Tensor | np.ndarray[Any, Any] | np.generic, name: str) -> Tensor:
    """Copy the numbers, so that views of one tensor are saved as what they are: apart."""
    if not isinstance(value, Tensor):
        array = np.array(value)
        _check_numbers(array, name)
        value = torch.from_numpy(array)
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def _restore(value: Tree, tensors: dict[str, Tensor], path: Path) -> Tree:
    if isinstance(value, list):
        return [_restore(item, tensors, path) for item in value]
    if not isinstance(value, dict):
        return value
    if "$rows" in value:
        return load_rows(path, value["$rows"])
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$array" in value:
        return tensors[value["$array"]].numpy()
    if "$tuple" in value:
        return tuple(_restore(item, tensors, path) for item in value["$tuple"])
    return {key: _restore(item, tensors, path) for key, item in value.items()}


def _check_version(version: int, path: Path) -> None:
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"The checkpoint in {path} has format {version}; this version of ding_lite reads "
            f"format {FORMAT_VERSION}. Load it with the version that wrote it."
        )


def _next_name(old_files: set[Path]) -> str:
    numbers = [int(p.stem.rpartition("-")[2]) for p in old_files]
    return f"tensors-{max(numbers, default=0) + 1:08d}.safetensors"


def _write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write beside the target, reach the disk, then take the target's name."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
