"""Reading of untrusted checkpoints.

Checksums detect damage, but a checkpoint may also be malicious. So only known dtypes and names of
files are accepted, sizes are compared with those of the files before memory is allocated, and any
mismatch is a `CheckpointError`.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ding_lite.errors import CheckpointError, kind_of
from ding_lite.io.dtypes import has_only_flags
from ding_lite.io.memory import available_bytes
from ding_lite.nest import num_composed
from ding_lite.rl.checkpoint.array_files import ArrayReader
from ding_lite.rl.checkpoint.folder import MANIFEST, Folder

Tree: TypeAlias = Any
"""Nested dicts, lists and tuples of values that a checkpoint can hold."""
KeySelection: TypeAlias = (
    Collection[str] | Callable[[dict[str, Any]], Collection[str] | None] | None
)
"""The keys of the tree's first level, or a function that chooses them by the `meta`."""

FORMAT_VERSION = 2
MOST_BITS = 14_000
"""Limit of an integer: Python refuses to write those of more than 4,300 digits as texts."""
_HEX = re.compile(rf"-?0x[0-9a-f]{{1,{MOST_BITS // 4}}}")
"""An integer of more than 64 bits, as in the state of a random generator."""
_BYTES = re.compile(r"([0-9a-f]{2})*")
_PARTS = (torch.float16, torch.float32, torch.float64)
_TORCH_DTYPES = {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}
MAX_DEPTH = 100
"""The maximum depth of nested dicts, lists and tuples."""
MAX_COMPOSED = 20_000
"""The maximum number of tuples in a set, or among the keys of a dict, such as a table of values. If
a file is made for it, so many take some ten seconds."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that `load_checkpoint` read."""

    state: Tree
    """The saved tree, with tensors as tensors and arrays as arrays."""
    meta: dict[str, Any]
    """The saved `meta`."""


class ManifestBody(msgspec.Struct, forbid_unknown_fields=True):
    """The manifest's content."""

    state: Tree
    meta: Tree
    tensors_file: str
    tensors_crc32: int


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """The outer layer of the manifest, with a checksum of its content."""

    format_version: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    body_crc32: int
    body: msgspec.Raw


def read_checkpoint(folder: Folder, encoded: bytes, only: KeySelection) -> Checkpoint:
    body = _read_manifest(folder, encoded)
    tensors = _read_tensors(folder, body)
    reading = _Reading(folder, tensors)
    meta, state = reading.restore(body.meta, 1), body.state
    if not isinstance(meta, dict):
        raise folder.damaged(f"`meta` is {kind_of(meta)}")
    if callable(only):
        only = only(meta)
    if only is not None:
        if not isinstance(state, dict) or _is_tag(state):
            raise CheckpointError(
                f"The checkpoint in {folder.path} holds no dict, so that no key can be read "
                f"alone. Load it without `only`."
            )
        state = {key: state[key] for key in state if key in only}
    return Checkpoint(reading.restore(state, 1), meta)


def _read_manifest(folder: Folder, encoded: bytes) -> ManifestBody:
    try:
        manifest = msgspec.json.decode(encoded, type=Manifest)
        if manifest.format_version != FORMAT_VERSION:
            raise CheckpointError(
                f"The checkpoint in {folder.path} has format {manifest.format_version}; this "
                f"version of ding_lite reads format {FORMAT_VERSION}. Load it with the version "
                f"that wrote it."
            )
        if zlib.crc32(manifest.body) != manifest.body_crc32:
            raise folder.damaged(f"{MANIFEST} has changed")
        return msgspec.json.decode(manifest.body, type=ManifestBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise folder.damaged(f"{MANIFEST} cannot be read ({error})") from error


def _read_tensors(folder: Folder, body: ManifestBody) -> dict[str, Tensor]:
    # The tensors are copies, and what is made of them takes memory, too.
    payload = folder.read(body.tensors_file, most=available_bytes() // 3)
    if zlib.crc32(payload) != body.tensors_crc32:
        raise folder.damaged(f"{body.tensors_file} has changed")
    try:
        tensors = load(payload)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise folder.damaged(f"{body.tensors_file} cannot be read ({error})") from error
    for name, tensor in tensors.items():
        if tensor.dtype is torch.bool and not has_only_flags(
            tensor.reshape(-1).view(torch.uint8).numpy()
        ):
            raise folder.damaged(f"`{name}` holds bytes beside 0 and 1")
    return tensors


class _Reading:
    def __init__(self, folder: Folder, tensors: dict[str, Tensor]) -> None:
        self._folder = folder
        self._tensors = tensors
        self._arrays = ArrayReader(folder, most=available_bytes())

    def restore(self, value: Tree, depth: int) -> Tree:
        if not isinstance(value, dict | list):
            return value
        if depth > MAX_DEPTH + 2:  # the deepest leaf may have one or two tags around it
            raise self._folder.damaged(f"more than {MAX_DEPTH} values lie within each other")
        if isinstance(value, list):
            return [self.restore(item, depth + 1) for item in value]
        if _is_tag(value):
            return self._tagged(*value.popitem(), depth)
        return {key: self.restore(item, depth + 1) for key, item in value.items()}

    def _tagged(self, tag: str, content: Tree, depth: int) -> Tree:
        match tag, content:
            case "$rows", _:
                return self._arrays.load(content)
            case "$tensor" | "$array", str(name) if name in self._tensors:
                tensor = self._tensors[name]
                return tensor if tag == "$tensor" else self._array(name, tensor)
            case "$scalar", str(name) if name in self._tensors:
                return self._array(name, self._tensors[name])[()]
            case "$tuple", list(items):
                return tuple(self.restore(item, depth + 1) for item in items)
            case "$set" | "$frozenset", list(items):
                kind = set if tag == "$set" else frozenset
                return kind(self._keys(items, depth + 1))
            case "$deque", [None | int() as longest, list(items)] if longest is None or (
                len(items) <= longest < sys.maxsize
            ):
                return deque((self.restore(item, depth + 1) for item in items), longest)
            case "$complex", _:
                return self._complex(self.restore(content, depth + 1))
            case "$dict", list(items) if all(isinstance(i, list) and len(i) == 2 for i in items):
                keys = self._keys([key for key, _ in items], depth + 1)
                values = (self.restore(value, depth + 1) for _, value in items)
                return dict(zip(keys, values, strict=True))
        return self._plain(tag, content)

    def _plain(self, tag: str, content: Tree) -> Tree:
        match tag, content:
            case "$bytes", str(digits) if _BYTES.fullmatch(digits):
                return bytes.fromhex(digits)
            case "$device", str(name) if len(name) < 40:
                with suppress(RuntimeError):
                    return torch.device(name)
            case "$dtype", str(name) if name in _TORCH_DTYPES:
                return _TORCH_DTYPES[name]
            case "$float", "inf" | "-inf" | "nan":
                return float(content)
            case "$int", str(digits) if _HEX.fullmatch(digits):
                return int(digits, 16)
        raise self._folder.damaged(f"{MANIFEST} says {tag!r:.80} of {content!r:.80}")

    def _keys(self, keys: list[Tree], depth: int) -> list[Tree]:
        restored = [self.restore(key, depth) for key in keys]
        for key in restored:
            if not is_key(key):
                raise self._folder.damaged(f"{MANIFEST} has a key {key!r:.80}")
        if num_composed(restored) > MAX_COMPOSED:
            raise self._folder.damaged(
                f"{MANIFEST} has more than {MAX_COMPOSED} tuples in a set or for keys"
            )
        return restored

    def _complex(self, parts: Tree) -> Tree:
        match parts:
            case [float(real), float(imaginary)]:
                return complex(real, imaginary)
            case Tensor() if parts.dtype in _PARTS and parts.shape[-1:] == (2,):
                return torch.view_as_complex(parts)
            case np.ndarray() if parts.dtype.str in ("<f4", "<f8") and parts.shape[-1:] == (2,):
                return parts.view(np.dtype(f"<c{2 * parts.itemsize}"))[..., 0]
        raise self._folder.damaged(f"{MANIFEST} has complex numbers of {parts!r:.80}")

    def _array(self, name: str, tensor: Tensor) -> np.ndarray[Any, Any]:
        try:
            return tensor.numpy()
        except (TypeError, ValueError) as error:  # a dtype or a shape that numpy lacks
            raise self._folder.damaged(f"`{name}` is no array ({error})") from error


def is_key(value: object) -> bool:
    """Return whether a value may be a key of a dict, or a member of a set."""
    parts = value if isinstance(value, tuple) else (value,)
    return all(part is None or isinstance(part, bool | int | float | str) for part in parts)


def _is_tag(value: dict[str, Any]) -> bool:
    return len(value) == 1 and next(iter(value)).startswith("$")
