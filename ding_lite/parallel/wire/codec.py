"""Encode trees of values as bytes, and decode them: `encode` and `decode`.

A tree of values becomes one short block of msgpack, the meta, and the raw bytes of its arrays.
Nothing is pickled, and nothing that arrives is trusted: every size is checked before memory is
taken for it, and every malformed message raises `CodecError`. Arrays are in `arrays`.

`docs/protocol.md` is the authority on the bytes. In short: a scalar is a msgpack scalar, and
everything else is a msgpack array with a tag as its first item.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from itertools import chain
from typing import Any, ClassVar, TypeAlias

import msgspec
import numpy as np

from ding_lite.errors import CodecError, ContextError
from ding_lite.parallel.wire.arrays import (
    CODES,
    OWN_BUFFER_BYTES,
    NumpyArray,
    Packing,
    Unpacking,
    Unsendable,
    array_code,
    is_tensor_class,
    shorten,
    tensor_code,
    tensor_of,
    unreadable,
)
from ding_lite.records import RECORDS
from ding_lite.runtime.context import Context

MAX_META_BYTES = 1024 * 1024
"""Limit of the bytes of a message's meta."""


class Tag:
    """The kind of an array in the meta: its first item."""

    LIST, TUPLE, DICT, SET, BYTES, SCALAR, ARRAY, TENSOR, CONTEXT, RECORD = range(10)


SCALARS = frozenset({type(None), bool, int, float, str, bytes})
"""Types that msgpack has itself; the keys of a dict are of one of them too."""
MAX_DEPTH = 16
"""Limit of nested containers in an encoded value; one more in a message of several."""

Value: TypeAlias = Any
Node: TypeAlias = list[Any]

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[int, Any])
_OPENER = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])


class Encoded(msgspec.Struct, frozen=True):
    """An encoded tree of values, with read-only buffers; may be sent to many nodes.

    It can itself be a value of a tree that is encoded, and is decoded there as the original.
    """

    meta: bytes
    """Everything but the numbers of arrays."""
    buffers: list[memoryview]
    """The packed small arrays, if any, and after them the large ones."""
    num_arrays: int = 0

    @property
    def nbytes(self) -> int:
        size = len(self.meta)
        return size + sum([buffer.nbytes for buffer in self.buffers]) if self.buffers else size


def encode(tree: Any, *, borrow: bool = False, name: str = "value", room: int = 0) -> Encoded:
    """Encode a tree of values.

    The result is a snapshot: it shares no memory with the tree that can change. Of an array that
    is all of a bytes object, such as one that has arrived in an event, it is no copy.

    Args:
        tree: None, bool, int (64 bit), float, str, bytes, list, tuple, dict (the keys are
            scalars), set, numpy scalar or array, torch tensor, `Context`, or a dataclass
            registered with `register`, or what an earlier `encode` returned. An OrderedDict
            arrives as a dict, a Parameter as a tensor without gradient, an array in row order
            and in this machine's byte order.
        borrow: Refer to contiguous arrays of 16 KiB and more instead of copying them. They must
            not change until the bytes have been sent.
        name: The name of the tree in errors.
        room: Bytes of the meta to leave free for an envelope around this tree.

    Raises:
        CodecError: A value cannot be sent; names its path in the tree. Nothing else is raised,
            whatever the properties and methods of a foreign object do.

    Example:
        >>> encode({"loss": 0.5}).meta.hex()
        '92009302a46c6f7373cb3fe0000000000000'
    """
    writer = _Writer(borrow)
    try:
        node = writer.node(tree, 1)
        packed = b"".join(writer.packed)
        meta = _ENCODER.encode((len(packed), node))
        if len(meta) > MAX_META_BYTES - room:
            raise _too_large(len(meta), room)
        buffers = [memoryview(packed), *writer.own] if packed else writer.own
        return Encoded(meta, buffers, writer.num_arrays)
    except Exception as error:  # noqa: BLE001 - what a foreign object raises may be anything
        is_leaf = isinstance(error, OverflowError | UnicodeEncodeError)  # msgspec says not which
        refusal = _find(tree) if is_leaf else unreadable(error)
        cause = refusal.__cause__ if is_leaf or refusal is error else error
        raise _error(refusal, name) from cause


def decode(meta: bytes | memoryview, buffers: Sequence[memoryview]) -> Any:
    """Decode the tree of values that `encode` was given.

    Arrays of 16 KiB and more are views of their buffers, and can be written to if those can.
    Small arrays are copies, and so are large tensors in read-only buffers; so no small
    value keeps a large message alive.

    Raises:
        CodecError: These bytes are no message.

    Example:
        >>> decode(bytes.fromhex("92009302a46c6f7373cb3fe0000000000000"), [])
        {'loss': 0.5}
    """
    if len(meta) > MAX_META_BYTES:
        raise CodecError(f"The meta has {len(meta)} bytes; the limit is {MAX_META_BYTES}.")
    try:
        packed_bytes, node = _DECODER.decode(meta)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"The meta is no msgpack as it should be: {error}") from error

    if not buffers and not packed_bytes and type(node) in SCALARS:
        return node
    reader = _Reader(buffers, packed_bytes)
    tree = reader.value(node, 1)
    if buffers or packed_bytes:
        reader.finish()
    return tree


_PLAIN = frozenset({type(None), bool, int, float, str})


class _Writer(Packing):
    """Encodes values into nodes for msgspec, and collects the buffers."""

    __slots__ = ()
    plain: ClassVar[frozenset[type]] = _PLAIN
    """Types that are left to msgspec."""

    def node(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is list:  # copied at once: other threads may write to it
            return [Tag.LIST, *self.nodes([*value], None, depth)]
        if kind in self.plain:
            return value
        write = _WRITERS.get(kind) or _writer_of(value)
        return write(self, value, depth)

    def nodes(self, values: Sequence[Any], keys: Iterable[Any] | None, depth: int) -> Sequence[Any]:
        """Encode the values of a container; `keys` name them in errors."""
        if depth > MAX_DEPTH:
            raise Unsendable(
                f"the {depth}th container within a container",
                f"At most {MAX_DEPTH} may be nested, and a container must not hold itself.",
            )
        self.least_bytes += 1 + len(values)
        if self.least_bytes > MAX_META_BYTES:  # a list may hold another one any number of times
            raise _too_large(self.least_bytes, 0)
        plain = self.plain
        if plain.issuperset(map(type, values)):
            return values
        found: list[Any] = []
        try:
            for value in values:  # as `node` does, which most values would pay for
                kind = type(value)
                if kind is tuple:
                    value = [Tag.TUPLE, *self.nodes(value, None, depth + 1)]
                elif kind not in plain and (kind is not bytes or len(value) >= OWN_BUFFER_BYTES):
                    value = (_WRITERS.get(kind) or _writer_of(value))(self, value, depth + 1)
                found.append(value)
        except Exception as error:  # noqa: BLE001 - likewise
            refusal = unreadable(error)
            refusal.path.append(len(found) if keys is None else list(keys)[len(found)])
            raise refusal from (None if refusal is error else error)
        return found

    def pairs(self, value: Mapping[Any, Any], depth: int) -> list[Any]:
        value = dict(value)  # at once: other threads may write to it
        if not SCALARS.issuperset(map(type, value)):
            key = next(key for key in value if type(key) not in SCALARS)
            raise Unsendable(
                f"a dict with the key {shorten(key)}, a {type(key).__name__}",
                "The key of a dict that travels is a str, int, float, bool, bytes or None.",
            )
        values = self.nodes([*value.values()], value, depth)
        keys = value if self.plain else [self.node(key, depth) for key in value]
        return [*chain.from_iterable(zip(keys, values, strict=True))]


_Write = Callable[[_Writer, Any, int], Any]


class _CheckingWriter(_Writer):
    """Checks every leaf, to find the value that msgspec has refused."""

    __slots__ = ()
    plain = frozenset()


def _write_set(writer: _Writer, value: set[Any], depth: int) -> list[Any]:
    items = [*value]
    return [Tag.SET, *writer.nodes(items, items, depth)]


def _write_context(writer: _Writer, value: Context, depth: int) -> list[Any]:
    kept = writer.nodes(value.kept, None, depth)
    pairs = writer.pairs(value, depth)
    return [Tag.CONTEXT, value.finish is True, len(kept), *kept, *pairs]


def _write_record(writer: _Writer, value: Any, depth: int) -> list[Any]:
    name, names = RECORDS.description(type(value))
    fields = {name: getattr(value, name) for name in names}
    return [Tag.RECORD, name, *writer.pairs(fields, depth)]


def _write_bytes(writer: _Writer, value: bytes, _depth: int) -> bytes | list[Any]:
    if len(value) < OWN_BUFFER_BYTES:
        return value
    return [Tag.BYTES, len(value), writer.add_bytes(value)]


def _write_scalar(writer: _Writer, value: np.generic, _depth: int) -> list[Any]:
    code, array = array_code(np.asarray(value))
    return [Tag.SCALAR, code, array.tobytes()]


def _write_array(writer: _Writer, value: NumpyArray, _depth: int) -> list[Any]:
    code, array = array_code(value)
    return [Tag.ARRAY, code, writer.add(array), *array.shape]


def _write_tensor(writer: _Writer, value: Any, _depth: int) -> list[Any]:
    code, array = tensor_code(value)
    return [Tag.TENSOR, code, writer.add(array), *array.shape]


def _write_encoded(writer: _Writer, value: Encoded, _depth: int) -> msgspec.Raw:
    packed_bytes, node = _OPENER.decode(value.meta)
    writer.add_all(value.buffers, packed_bytes, value.num_arrays)
    return node


def _write_int(_writer: _Writer, value: int, _depth: int) -> int:
    if not -(2**63) <= value < 2**64:
        raise Unsendable(f"the int {value!r:.40}, of more than 64 bits", "Send a float or a str.")
    return value


def _write_str(_writer: _Writer, value: str, _depth: int) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unsendable(f"the str {value!a:.40}, which is no Unicode", "Send bytes.") from None
    return value


_WRITERS: dict[type, _Write] = {
    # The first five are asked only to find out which value msgspec has refused.
    **dict.fromkeys((type(None), bool, float), lambda writer, value, depth: value),
    int: _write_int,
    str: _write_str,
    bytes: _write_bytes,
    list: _Writer.node,
    tuple: lambda writer, value, depth: [Tag.TUPLE, *writer.nodes(value, None, depth)],
    **dict.fromkeys(
        (dict, OrderedDict),
        lambda writer, value, depth: [Tag.DICT, *writer.pairs(value, depth)],
    ),
    set: _write_set,
    **dict.fromkeys((np.ndarray, np.memmap), _write_array),
    Context: _write_context,
    Encoded: _write_encoded,
    **{dtype.type: _write_scalar for dtype in CODES},
}


def _writer_of(value: Any) -> _Write:
    kind = type(value)
    if kind in RECORDS:
        return _write_record
    if is_tensor_class(kind):
        return _write_tensor
    if isinstance(value, Context):
        return _write_context
    if isinstance(value, np.generic):
        return _write_scalar
    article = "an" if kind.__name__[:1].lower() in "aeiou" else "a"
    raise Unsendable(f"{article} {kind.__name__}", _remedy(value))


def _remedy(value: Any) -> str:
    if isinstance(value, Enum):
        return "Send its `.value`."
    if is_dataclass(value) and not isinstance(value, type):
        return "Decorate its class with @register, on every node."
    if isinstance(value, np.ndarray):
        return "Send `np.asarray(...)` of it, which is all that would arrive."
    for plain in (dict, list, tuple, set, frozenset, str, bytes, int, float):
        if isinstance(value, plain):
            like = "set" if plain is frozenset else plain.__name__
            return f"Send `{like}(...)` of it, which is all that would arrive."
    if isinstance(value, bytearray | memoryview):
        return "Send `bytes(...)` of it."
    return "Send arrays, tensors or plain values."


def _too_large(size: int, room: int) -> Unsendable:
    return Unsendable(
        f"{size} bytes of values that are no arrays",
        f"A message holds {MAX_META_BYTES - room} of them: send long lists and texts as arrays "
        f"and bytes.",
    )


def _find(tree: Any) -> Unsendable:
    try:
        _CheckingWriter(True).node(tree, 1)
    except Exception as error:  # noqa: BLE001 - it is the caller's to raise
        return unreadable(error)
    return Unsendable("a tree that has changed meanwhile", "Send a copy.")


def _error(refusal: Unsendable, name: str) -> CodecError:
    path = name + "".join(f"[{shorten(key)}]" for key in reversed(refusal.path))
    return CodecError(f"`{path}` is {refusal.found}, which cannot be sent. {refusal.remedy}")


class _Reader(Unpacking):
    """Decodes nodes into values, using up the buffers."""

    __slots__ = ()

    def value(self, node: Value, depth: int) -> Value:
        if type(node) in SCALARS:
            return node
        if type(node) is not list or not node:
            raise CodecError(f"{shorten(node)} is neither a scalar nor an array with a tag.")
        tag = node[0]
        if type(tag) is not int or not 0 <= tag < len(_READERS):
            raise CodecError(f"{shorten(tag)} is no tag; they go from 0 to {len(_READERS) - 1}.")
        read = _READERS[tag]
        if read is not None:
            return read(self, node, depth)
        items = self.values(node[1:], depth)
        return tuple(items) if tag else items

    def values(self, nodes: Node, depth: int) -> list[Value]:
        if depth > MAX_DEPTH + 1:
            raise CodecError(f"There are more than {MAX_DEPTH + 1} containers within each other.")
        if SCALARS.issuperset(map(type, nodes)):
            return nodes
        return [
            node if type(node) in SCALARS else self.value(node, depth + 1)  # most are
            for node in nodes
        ]

    def pairs(self, nodes: Node, depth: int) -> dict[Value, Value]:
        if not nodes:
            return {}
        keys = nodes[::2]
        if 2 * len(keys) != len(nodes) or not SCALARS.issuperset(map(type, keys)):
            raise CodecError("The keys and values of a dict do not come in pairs.")
        found = dict(zip(keys, self.values(nodes[1::2], depth), strict=True))
        if len(found) != len(keys):
            raise CodecError("A dict has a key twice.")
        return found


_Read = Callable[[_Reader, Node, int], Value]


def _read_set(reader: _Reader, node: Node, depth: int) -> set[Value]:
    items = reader.values(node[1:], depth)
    try:
        found = set(items)
    except TypeError as error:
        raise CodecError(f"A set holds what no set can: {error}.") from error
    if len(found) != len(items):
        raise CodecError("A set has an item twice.")
    return found


def _read_bytes(reader: _Reader, node: Node, _depth: int) -> bytes:
    _, size, own = _of_length(node, 3)
    if type(size) is not int or size < 0:
        raise CodecError(f"The size of bytes is {shorten(size)}.")
    return bytes(reader.take(size, own))


def _read_scalar(_reader: _Reader, node: Node, _depth: int) -> Value:
    _, code, raw = _of_length(node, 3)
    if type(raw) is not bytes:
        raise CodecError(f"The number of a scalar is {shorten(raw)}; expected are its bytes.")
    number = Unpacking([memoryview(raw)], len(raw))
    array = number.array(code, False, [])
    number.finish()
    return array[()]


def _read_array(reader: _Reader, node: Node, _depth: int) -> NumpyArray:
    _, code, own = _of_length(node[:3], 3)
    return reader.array(code, own, node[3:])


def _read_tensor(reader: _Reader, node: Node, _depth: int) -> Value:
    _, code, own = _of_length(node[:3], 3)
    return tensor_of(reader.array("u2" if code == "bf16" else code, own, node[3:]), code)


def _read_context(reader: _Reader, node: Node, depth: int) -> Context:
    _, finish, num_kept = _of_length(node[:3], 3)
    if type(finish) is not bool or type(num_kept) is not int or not 0 <= num_kept < len(node):
        raise CodecError(f"A context begins with {shorten(node[:3])}.")
    kept = node[3 : 3 + num_kept]
    items = reader.pairs(node[3 + num_kept :], depth)
    if "finish" in items or not {str}.issuperset(map(type, kept)):
        raise CodecError("A context keeps a key that is no str, or has an item `finish`.")
    try:
        ctx = Context(items)
        ctx.keep(*kept)
    except ContextError as error:
        raise CodecError(f"A context may not hold its keys: {error}") from error
    if finish:
        ctx.finish = True
    return ctx


def _read_record(reader: _Reader, node: Node, depth: int) -> object:
    _, name = _of_length(node[:2], 2)
    return RECORDS.build(name, reader.pairs(node[2:], depth))


def _of_length(node: Node, length: int) -> Node:
    if len(node) != length:
        raise CodecError(f"A value has {len(node)} parts where it needs {length}: {shorten(node)}.")
    return node


# In the order of their tags.
_READERS: tuple[_Read | None, ...] = (
    None,  # lists and tuples, most of all: without a call more
    None,
    lambda reader, node, depth: reader.pairs(node[1:], depth),
    _read_set,
    _read_bytes,
    _read_scalar,
    _read_array,
    _read_tensor,
    _read_context,
    _read_record,
)
