"""Encode trees of values as bytes, and decode them: `encode` and `decode`.

A tree of values becomes one short block of msgpack, the meta, and the raw bytes of its arrays.
Nothing is pickled, and nothing that arrives is trusted: every size is checked before memory is
taken for it, and every malformed message raises `CodecError`. Arrays are in `arrays`.

`docs/protocol.md` is the authority on the bytes. In short: scalars, lists and dicts are what they
are in msgpack, and everything else is a msgpack array with an extension type as its first item.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from ding_lite.errors import CodecError, ContextError, with_article
from ding_lite.nest import num_composed
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
from ding_lite.records import RECORDS, RecordError
from ding_lite.runtime.context import Context

MAX_META_BYTES = 1024 * 1024
"""Limit of the bytes of a message's meta."""


class Tag:
    """The kind of an array in the meta that is no list: its first item."""

    TUPLE, SET, BYTES, SCALAR, ARRAY, TENSOR, CONTEXT, RECORD = (Ext(k, b"") for k in range(8))


SCALARS = frozenset({type(None), bool, int, float, str, bytes})
"""Types that msgpack has itself; the keys of a dict are of one of them too."""
MAX_DEPTH = 16
"""Limit of the nested containers of a value; a message has up to `MAX_AROUND` around it."""
MAX_AROUND = 2
"""Containers of a message around its values: its own, and one that a hub adds."""

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


def encode(
    tree: Any, *, borrow: bool = False, name: str = "value", room: int = 0, around: int = 0
) -> Encoded:
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
        around: How many of the outermost containers are those of a message, and do not count.

    Raises:
        CodecError: A value cannot be sent; names its path in the tree. Nothing else is raised,
            whatever the properties and methods of a foreign object do.

    Example:
        >>> encode({"loss": 0.5}).meta.hex()
        '920081a46c6f7373cb3fe0000000000000'
    """
    writer = _Writer(borrow)
    try:
        node = writer.node(tree, 1 - around)
        packed = b"".join(writer.packed) if writer.packed else b""
        try:
            meta = _ENCODER.encode((len(packed), node))
        except (OverflowError, UnicodeEncodeError):  # msgspec says not of which value
            raise _refused(node) from None
        if len(meta) > MAX_META_BYTES - room:
            raise _too_large(len(meta), room)
        buffers = [memoryview(packed), *writer.own] if packed else writer.own
        return Encoded(meta, buffers, writer.num_arrays)
    except Exception as error:  # noqa: BLE001 - what a foreign object raises may be anything
        refusal = unreadable(error)
        raise _error(refusal, name) from (refusal.__cause__ if refusal is error else error)


def decode(meta: bytes | memoryview, buffers: Sequence[memoryview]) -> Any:
    """Decode the tree of values that `encode` was given.

    Arrays of 16 KiB and more are views of their buffers, and can be written to if those can.
    Small arrays are copies, and so are large tensors in read-only buffers; so no small
    value keeps a large message alive.

    Raises:
        RecordError: The message is well-formed, and holds a record that this node cannot build.
        CodecError: These bytes are no message.

    Example:
        >>> decode(bytes.fromhex("920081a46c6f7373cb3fe0000000000000"), [])
        {'loss': 0.5}
    """
    reader, node = _open(meta, buffers)
    tree = reader.value(node, 1)
    reader.finish()
    if reader.refusal is not None:
        raise reader.refusal
    return tree


def decode_items(
    meta: bytes | memoryview, buffers: Sequence[memoryview]
) -> tuple[dict[str, Any], dict[str, RecordError]]:
    """Decode a dict by str without the values that hold a record which this node cannot build.

    Returns:
        The dict, and the reasons for which values were left out, by key.

    Raises:
        CodecError: These bytes are no message of a dict.
    """
    reader, node = _open(meta, buffers)
    if type(node) is not dict or not {str}.issuperset(map(type, node)):
        raise CodecError(f"Expected is a dict by str, and not {shorten(node)}.")
    items, refusals = {}, {}
    for key, item in node.items():
        value = reader.value(item, 2)
        if reader.refusal is None:
            items[key] = value
        else:
            refusals[key], reader.refusal = reader.refusal, None
    reader.finish()
    return items, refusals


def _open(meta: bytes | memoryview, buffers: Sequence[memoryview]) -> tuple[_Reader, Any]:
    if len(meta) > MAX_META_BYTES:
        raise CodecError(f"The meta has {len(meta)} bytes; the limit is {MAX_META_BYTES}.")
    try:
        if len(meta) > _HARMLESS_BYTES:
            _check_keys(_OPENER.decode(meta)[1], 0)
        found = _DECODER.decode(meta)
        is_canonical = _ENCODER.encode(found) == meta
    # Before msgspec 0.22 a key that has no hash is a TypeError.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise CodecError(f"The meta is no msgpack as it should be: {error}") from error
    if not is_canonical:
        raise CodecError("The meta is not in its shortest form, or a dict in it has a key twice.")

    packed_bytes, node = found
    return _Reader(buffers, packed_bytes), node


class _Key:
    """A key of a dict, in a check of its type."""


def _read_key(_kind: type, key: object) -> _Key:
    if isinstance(key, tuple):
        raise CodecError(f"A dict has the key {shorten(key)}; expected is a scalar.")
    return _Key()


_HARMLESS_BYTES = 1 << 14
"""The size up to which a dict has too few keys to take long, even if all have one hash."""
_LEVEL = msgspec.msgpack.Decoder(list[msgspec.Raw] | dict[_Key, msgspec.Raw], dec_hook=_read_key)
_MAX_LISTS = 2 * (MAX_DEPTH + MAX_AROUND)
"""Limit of the nested lists and dicts of a meta: a context and a record take two each."""


def _check_keys(node: msgspec.Raw, depth: int) -> None:
    """Refuse arrays as keys, in large dicts, before msgspec makes dicts of them as tuples."""
    if not _is_container(memoryview(node)[0]):
        return
    if depth > _MAX_LISTS:
        raise CodecError(f"There are more than {_MAX_LISTS} lists and dicts within each other.")
    level = _LEVEL.decode(node)
    for part in level.values() if isinstance(level, dict) else level:
        if len(part) > _HARMLESS_BYTES:
            _check_keys(part, depth + 1)


def _is_container(first: int) -> bool:
    return 0x80 <= first < 0xA0 or 0xDC <= first < 0xE0


_MAX_COMPOSED = 1_000
"""Limit of the tuples and records in a set, also in tuples there."""
_PLAIN = frozenset({type(None), bool, int, float, str})
"""Types that are left to msgspec."""
_CONTAINERS = frozenset({list, dict, tuple})
_MANY = 16
"""Items that are checked sooner all at once than one by one."""


class _Writer(Packing):
    """Encodes values into nodes for msgspec, and collects the buffers."""

    def node(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind not in _CONTAINERS:
            return (_WRITERS.get(kind) or _writer_of(value))(self, value, depth)
        if depth > MAX_DEPTH:
            raise Unsendable(
                f"the {depth}th container within a container",
                f"At most {MAX_DEPTH} may be nested, and a container must not hold itself.",
            )
        copied: Any = {**value} if kind is dict else [*value]  # at once: others may write to it
        self.least_bytes += len(copied)
        if self.least_bytes > MAX_META_BYTES:  # a list may hold another one any number of times
            raise _too_large(self.least_bytes, 0)
        plain = _PLAIN
        key: Any = 0
        try:
            if kind is not dict:
                if len(copied) < _MANY or not plain.issuperset(map(type, copied)):
                    for item in copied:
                        if type(item) not in plain:
                            copied[key] = self.node(item, depth + 1)
                        key += 1
                return copied if kind is list else [Tag.TUPLE, *copied]
            for key, item in copied.items():
                if type(key) not in SCALARS:
                    break
                if type(item) not in plain:
                    copied[key] = self.node(item, depth + 1)
            else:
                return copied
        except Exception as error:  # noqa: BLE001 - likewise
            refusal = unreadable(error)
            refusal.path.append(key)
            raise refusal from (None if refusal is error else error)
        raise Unsendable(
            f"a dict with the key {shorten(key)}, a {type(key).__name__}",
            "A key can be sent if it is a str, int, float, bool, bytes or None.",
        )


_Write = Callable[[_Writer, Any, int], Any]


def _write_set(writer: _Writer, value: set[Any], depth: int) -> list[Any]:
    members = [*value]
    node = writer.node(members, depth)
    if not _PLAIN.issuperset(map(type, members)) and num_composed(members) > _MAX_COMPOSED:
        raise Unsendable(
            f"a set with {num_composed(members)} tuples or records in it",
            f"At most {_MAX_COMPOSED} can be sent in a set. Send a list of them.",
        )
    return [Tag.SET, *node]


def _write_context(writer: _Writer, value: Context, depth: int) -> list[Any]:
    kept = writer.node([*value.kept], depth)
    return [Tag.CONTEXT, value.finish is True, kept, writer.node(dict(value), depth)]


def _write_record(writer: _Writer, value: Any, depth: int) -> list[Any]:
    name, names = RECORDS.description(type(value))
    return [Tag.RECORD, name, writer.node({name: getattr(value, name) for name in names}, depth)]


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


_WRITERS: dict[type, _Write] = {
    **dict.fromkeys(_PLAIN, lambda writer, value, depth: value),
    bytes: _write_bytes,
    set: _write_set,
    OrderedDict: lambda writer, value, depth: writer.node(dict(value), depth),
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
    raise Unsendable(with_article(kind.__name__), _remedy(value))


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


def _refused(node: Any) -> Unsendable:
    """Find the value in a node that msgspec refuses."""
    has_tag = type(node) is list and node and type(node[0]) is Ext
    parts: Iterable[tuple[Any, Any]] = ()
    if type(node) is dict:
        parts = node.items()
    elif type(node) is list:
        parts = enumerate(node[1:] if has_tag else node)
    for key, part in parts:
        if type(node) is dict and _is_refused(key):
            return _refused(key)
        if _is_refused(part):
            refusal = _refused(part)
            if not (has_tag and node[0] in (Tag.CONTEXT, Tag.RECORD)):  # their parts are containers
                refusal.path.append(key)
            return refusal
    if type(node) is int:
        return Unsendable(
            f"the int {shorten(node)}, of more than 64 bits", "Send a float or a str."
        )
    return Unsendable(f"the str {node!a:.40}, which is no Unicode", "Send bytes.")


def _is_refused(node: Any) -> bool:
    try:
        _ENCODER.encode(node)
    except (OverflowError, UnicodeEncodeError):
        return True
    return False


def _error(refusal: Unsendable, name: str) -> CodecError:
    path = name + "".join(f"[{shorten(key)}]" for key in reversed(refusal.path))
    return CodecError(f"`{path}` is {refusal.found}, which cannot be sent. {refusal.remedy}")


class _Reader(Unpacking):
    """Decodes nodes into values, using up the buffers."""

    refusal: RecordError | None = None
    """Why the first record that cannot be built cannot; what follows it is read nevertheless."""

    def value(self, node: Value, depth: int) -> Value:
        if depth > MAX_DEPTH + MAX_AROUND:
            raise CodecError(
                f"There are more than {MAX_DEPTH + MAX_AROUND} containers within each other."
            )
        kind = type(node)
        if kind is list:
            if not node or type(node[0]) is not Ext:
                return self.items(node, depth)
            tag, *parts = node
            if 0 <= tag.code < len(_READERS) and tag.data == b"":
                return _READERS[tag.code](self, parts, depth)
            raise CodecError(
                f"An extension type {tag.code} of {shorten(tag.data)} is no tag; they go from 0 to "
                f"{len(_READERS) - 1}, without data."
            )
        if kind is dict:
            return self.pairs(node, depth)
        if kind in SCALARS:
            return node
        raise CodecError(f"{shorten(node)} is no value.")

    def items(self, node: Node, depth: int) -> list[Value]:
        if len(node) < _MANY or not SCALARS.issuperset(map(type, node)):
            for at, item in enumerate(node):
                if type(item) not in SCALARS:
                    node[at] = self.value(item, depth + 1)
        return node

    def pairs(self, node: dict[Any, Any], depth: int) -> dict[Value, Value]:
        for key, item in node.items():
            if type(key) not in SCALARS:
                raise CodecError(f"A dict has the key {shorten(key)}; expected is a scalar.")
            if type(item) not in SCALARS:
                node[key] = self.value(item, depth + 1)
        return node


_Read = Callable[[_Reader, Node, int], Value]


def _read_tuple(reader: _Reader, parts: Node, depth: int) -> tuple[Value, ...]:
    return tuple(reader.items(parts, depth))


def _read_set(reader: _Reader, parts: Node, depth: int) -> set[Value]:
    items = reader.items(parts, depth)
    if not SCALARS.issuperset(map(type, items)) and num_composed(items) > _MAX_COMPOSED:
        raise CodecError(f"A set has more than {_MAX_COMPOSED} tuples or records.")
    try:
        found = set(items)
    except TypeError as error:
        raise CodecError(f"A set holds what no set can: {error}.") from error
    if len(found) != len(items):
        raise CodecError("A set has an item twice.")
    return found


def _read_bytes(reader: _Reader, parts: Node, _depth: int) -> bytes:
    size, own = _of_length(parts, 2)
    if type(size) is not int or size < 0:
        raise CodecError(f"The size of bytes is {shorten(size)}.")
    return bytes(reader.take(size, own))


def _read_scalar(_reader: _Reader, parts: Node, _depth: int) -> Value:
    code, raw = _of_length(parts, 2)
    if type(raw) is not bytes:
        raise CodecError(f"The number of a scalar is {shorten(raw)}; expected are its bytes.")
    number = Unpacking([memoryview(raw)], len(raw))
    array = number.array(code, False, [])
    number.finish()
    return array[()]


def _read_array(reader: _Reader, parts: Node, _depth: int) -> NumpyArray:
    code, own, shape = _shaped(parts)
    return reader.array(code, own, shape)


def _read_tensor(reader: _Reader, parts: Node, _depth: int) -> Value:
    code, own, shape = _shaped(parts)
    return tensor_of(reader.array("u2" if code == "bf16" else code, own, shape), code)


def _read_context(reader: _Reader, parts: Node, depth: int) -> Context:
    finish, kept, items = _of_length(parts, 3)
    if type(finish) is not bool or type(kept) is not list or type(items) is not dict:
        raise CodecError(f"A context consists of {shorten(parts)}.")
    if "finish" in items or not {str}.issuperset(map(type, kept)):
        raise CodecError("A context keeps a key that is no str, or has an item `finish`.")
    try:
        ctx = Context(reader.pairs(items, depth))
        ctx.keep(*kept)
    except ContextError as error:
        raise CodecError(f"A context may not hold its keys: {error}") from error
    if finish:
        ctx.finish = True
    return ctx


def _read_record(reader: _Reader, parts: Node, depth: int) -> object:
    name, fields = _of_length(parts, 2)
    if type(fields) is not dict:
        raise CodecError(f"The fields of a record are {shorten(fields)}; expected is a dict.")
    values = reader.pairs(fields, depth)
    if reader.refusal is None:
        try:
            return RECORDS.build(name, values)
        except RecordError as error:
            reader.refusal = error
    return object()  # never used: `decode` raises the refusal once all else has been checked


def _of_length(parts: Node, length: int) -> Node:
    if len(parts) != length:
        raise CodecError(f"A value has {len(parts)} parts; needed are {length}: {shorten(parts)}.")
    return parts


def _shaped(parts: Node) -> tuple[Any, Any, Node]:
    if len(parts) < 2:
        _of_length(parts, 2)
    code, own, *shape = parts
    return code, own, shape


# In the order of their tags.
_READERS: tuple[_Read, ...] = (
    _read_tuple,
    _read_set,
    _read_bytes,
    _read_scalar,
    _read_array,
    _read_tensor,
    _read_context,
    _read_record,
)
