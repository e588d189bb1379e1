"""Encode arrays and tensors as raw little-endian bytes in buffers.

The numbers of arrays are not in the meta: large arrays get a buffer each, which is not copied, and
the small ones share one, the packed buffer. The meta has dtype and shape, and the order of the
arrays assigns the bytes, so that no two can claim the same ones.
"""

from __future__ import annotations

import functools
import itertools
import math
import reprlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ding_lite.errors import CodecError
from ding_lite.io.dtypes import CODES as CODES, DTYPES, has_only_flags

if TYPE_CHECKING:
    import torch

NumpyArray: TypeAlias = npt.NDArray[Any]

OWN_BUFFER_BYTES = 16 * 1024
"""Arrays from this size on get a buffer of their own, if there is one left."""
MAX_BUFFERS = 1023
"""Limit of the buffers of a message: with the frame before them that makes 1024."""
MAX_ARRAYS = 4096
MAX_NDIM = 8
MAX_EMPTY_ROWS = 2**20
"""Limit of the rows of an array without numbers: a few bytes could announce 2**60 to a reader."""
MAX_PAYLOAD_BYTES = 2 * 2**30
"""Limit of the bytes of all buffers of a message."""

_BOOL = DTYPES["b1"]
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = 80


class Unsendable(Exception):
    """A value cannot be sent; `path` grows, innermost key first, on the way out of the tree."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found, remedy)
        self.found = found
        self.remedy = remedy
        self.path: list[Any] = []


def unreadable(error: Exception) -> Unsendable:
    """Return an error as `Unsendable`: a foreign object may raise anything."""
    if isinstance(error, Unsendable):
        return error
    return Unsendable(
        f"a value that raises {type(error).__name__} when it is read",
        "Send a copy of plain values.",
    )


class Packing(msgspec.Struct):
    """The buffers of a message that is being written; `borrow` refers to large arrays, uncopied."""

    borrow: bool
    least_bytes: int = 0
    nbytes: int = 0
    own: list[memoryview] = []
    packed: list[bytes] = []
    num_arrays: int = 0

    def add(self, array: NumpyArray) -> bool:
        """Add a little-endian array; return whether it got its own buffer."""
        if self.num_arrays == MAX_ARRAYS:
            raise Unsendable(
                f"array number {MAX_ARRAYS + 1} of its message",
                f"A message holds {MAX_ARRAYS} arrays: join small ones with np.stack.",
            )
        if array.ndim > MAX_NDIM:
            raise Unsendable(
                f"an array of {array.ndim} dimensions",
                f"At most {MAX_NDIM} can be sent: reshape it.",
            )
        if not array.nbytes and _num_rows(array.shape) > MAX_EMPTY_ROWS:
            raise Unsendable(
                f"an array without numbers of the shape {array.shape}",
                f"At most {MAX_EMPTY_ROWS} empty rows can be sent: send their number.",
            )
        self.num_arrays += 1
        self._add_up(array.nbytes)
        if array.nbytes < OWN_BUFFER_BYTES or len(self.own) == MAX_BUFFERS - 1:
            self.packed.append(array.tobytes())
            return False

        is_shared = self.borrow or _is_immutable(array)
        array = np.ascontiguousarray(array) if is_shared else np.array(array, order="C")
        self.own.append(array.reshape(-1).view(np.uint8).data.toreadonly())
        return True

    def add_bytes(self, value: bytes) -> bool:
        self._add_up(len(value))
        if len(self.own) == MAX_BUFFERS - 1:
            self.packed.append(value)
            return False
        self.own.append(memoryview(value))
        return True

    def add_all(self, buffers: list[memoryview], packed_bytes: int, num_arrays: int) -> None:
        own = buffers[1:] if packed_bytes else buffers
        if self.num_arrays + num_arrays > MAX_ARRAYS or len(self.own) + len(own) >= MAX_BUFFERS:
            raise Unsendable(
                f"one of {self.num_arrays + num_arrays} arrays in its message",
                f"A message holds {MAX_ARRAYS} arrays, fewer than {MAX_BUFFERS} of them large; "
                f"join small ones with np.stack.",
            )
        self.num_arrays += num_arrays
        self._add_up(sum([buffer.nbytes for buffer in buffers]))
        self.own += own
        if packed_bytes:
            self.packed.append(bytes(buffers[0]))

    def _add_up(self, nbytes: int) -> None:
        """Refuse too many bytes before they are copied: numpy may repeat one number."""
        self.nbytes += nbytes
        if self.nbytes > MAX_PAYLOAD_BYTES:
            raise Unsendable(
                f"one of {self.nbytes} bytes of arrays in its message",
                f"A message holds {MAX_PAYLOAD_BYTES}: send it in parts.",
            )


class Unpacking(msgspec.Struct):
    """The buffers of a message that is being read, of which the first may be the packed one."""

    buffers: Sequence[memoryview]
    packed_bytes: int
    position: int = 0
    """The next byte of the packed buffer."""
    own: int = 0
    """The next buffer after the packed one."""
    num_arrays: int = 0

    def __post_init__(self) -> None:
        if not self.packed_bytes:
            return
        if not self.buffers or self.buffers[0].nbytes != self.packed_bytes:
            found = f"{self.buffers[0].nbytes} bytes" if self.buffers else "not there"
            raise CodecError(
                f"The packed buffer is {found}; the meta says {self.packed_bytes} bytes."
            )
        self.own = 1

    def array(self, code: str, own: bool, shape: list[int]) -> NumpyArray:
        """Return the next array: a view of its own buffer, or a copy out of the packed one."""
        dtype = DTYPES.get(code) if type(code) is str else None
        if dtype is None:
            raise CodecError(f"An array has the unknown dtype {shorten(code)}.")
        self.num_arrays += 1
        if self.num_arrays > MAX_ARRAYS:
            raise CodecError(f"There are more than {MAX_ARRAYS} arrays in one message.")
        if len(shape) > MAX_NDIM or any(type(size) is not int or size < 0 for size in shape):
            raise CodecError(
                f"An array has the shape {shorten(shape)}; expected are at most {MAX_NDIM} sizes, "
                f"none below 0."
            )

        # Python's integers: no product of sizes overflows.
        nbytes = math.prod(shape) * dtype.itemsize
        raw = self.take(nbytes, own)
        if not nbytes:
            return _empty(shape, dtype)
        array: NumpyArray = np.frombuffer(raw, dtype).reshape(shape)
        if dtype is _BOOL and not has_only_flags(array):
            raise CodecError("A bool array holds bytes other than 0 and 1.")
        return array if own else array.copy()

    def take(self, nbytes: int, own: bool) -> memoryview:
        """Return the next bytes: a whole buffer, or a part of the packed one."""
        if own is True:
            found = None if self.own == len(self.buffers) else self.buffers[self.own]
            if found is None or found.nbytes != nbytes:
                size = "none" if found is None else found.nbytes
                raise CodecError(f"A value of {nbytes} bytes has a buffer of {size} bytes.")
            self.own += 1
            return found
        if own is not False:
            raise CodecError(f"Where a value's bytes are is said by a bool, not {shorten(own)}.")
        begin, self.position = self.position, self.position + nbytes
        if self.position > self.packed_bytes:
            raise CodecError(
                f"A value of {nbytes} bytes reaches beyond the end of the packed buffer, which "
                f"has {self.packed_bytes} bytes."
            )
        return self.buffers[0][begin : self.position] if nbytes else memoryview(b"")

    def finish(self) -> None:
        left = len(self.buffers) - self.own
        if left or self.position != self.packed_bytes:
            raise CodecError(
                f"Left over are {left} buffers and {self.packed_bytes - self.position} bytes "
                f"of the packed one, which no value claims."
            )


def shorten(value: object) -> str:
    """Return at most 100 letters of the repr of any value."""
    try:
        return _SHORT.repr(value)[:100]
    except Exception:  # noqa: BLE001 - a class may raise anything when it is asked for its size
        return object.__repr__(value)[:100]


def array_code(array: NumpyArray) -> tuple[str, NumpyArray]:
    """Return the dtype code of an array, and the array in little-endian order."""
    code = CODES.get(array.dtype)
    if code is None:
        little = array.dtype.newbyteorder("<")
        if little not in CODES:
            raise Unsendable(
                f"an array of dtype {array.dtype}",
                "Send numbers or bools: convert it with `.astype(...)`.",
            )
        code, array = CODES[little], array.astype(little)
    if code == "b1":
        array = _proper_bools(array)
    return code, array


def _is_immutable(array: NumpyArray) -> bool:
    """Return whether an array is all of a bytes object, as one that has arrived and is relayed."""
    memory: object = array
    while isinstance(memory, np.ndarray):
        memory = memory.base
    if isinstance(memory, memoryview):
        memory = memory.obj
    return type(memory) is bytes and len(memory) == array.nbytes


def _proper_bools(array: NumpyArray) -> NumpyArray:
    """Return an array of bools with bytes 0 and 1: a view may hold others."""
    numbers = array.view(np.uint8)
    return numbers != 0 if numbers.size and numbers.max() > 1 else array


def is_tensor_class(cls: type) -> bool:
    """Return whether a class is one of torch tensors, without importing torch."""
    return issubclass(cls, getattr(sys.modules.get("torch"), "Tensor", ()))


def tensor_code(tensor: torch.Tensor) -> tuple[str, NumpyArray]:
    """Return the dtype code of a tensor, and its array (u2 for bf16), copied if on a device."""
    import torch

    code = _torch_codes().get(tensor.dtype)
    if code is None or tensor.layout is not torch.strided:
        raise Unsendable(
            f"a tensor of {tensor.dtype} and layout {tensor.layout}",
            "Convert it with `.to(...)` or `.to_dense()`.",
        )
    try:
        tensor = tensor.cpu()
        if code == "bf16":
            return code, tensor.detach().view(torch.uint16).numpy(force=True)
        array = tensor.numpy(force=True)
        return code, _proper_bools(array) if code == "b1" else array
    except (RuntimeError, TypeError, ValueError) as error:  # a subclass without numbers of its own
        raise Unsendable(f"a {type(tensor).__name__} without data ({error})", "Fill it.") from error


def tensor_of(array: NumpyArray, code: str) -> torch.Tensor:
    import torch

    # Read-only memory is copied: torch has no read-only tensors.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(torch.bfloat16) if code == "bf16" else tensor


@functools.cache
def _torch_codes() -> dict[torch.dtype, str]:
    import torch

    names = {"b1": "bool", "bf16": "bfloat16", "c8": "complex64", "c16": "complex128"}
    kinds = {"i": "int", "u": "uint", "f": "float"}
    for code in DTYPES:
        names.setdefault(code, f"{kinds.get(code[0])}{8 * int(code[1:])}")
    return {getattr(torch, name): code for code, name in names.items()}


def _num_rows(shape: Sequence[int]) -> int:
    """Return how many rows there are to iterate over in an array with a 0 in its shape."""
    return math.prod(itertools.takewhile(bool, shape))


def _empty(shape: list[int], dtype: np.dtype[Any]) -> NumpyArray:
    if _num_rows(shape) > MAX_EMPTY_ROWS:
        raise CodecError(
            f"An array without numbers has the shape {shape}; the limit is {MAX_EMPTY_ROWS} rows."
        )
    try:
        return np.empty(shape, dtype)
    except ValueError as error:  # sizes beside the 0 that no array can have
        raise CodecError(f"An empty array has the impossible shape {shape}.") from error
