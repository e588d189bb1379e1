"""Decode the msgpack nodes of a message's meta into a tree of values.

Nothing is trusted: any scalar and any nesting of arrays may arrive. A node is a scalar, or an
array with a tag as its first item.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ding_lite.errors import CodecError, ContextError
from ding_lite.parallel.wire.arrays import NumpyArray, Unpacking, shorten, tensor_of
from ding_lite.records import RECORDS
from ding_lite.runtime.context import Context


class Tag:
    """The kind of an array in the meta: its first item."""

    LIST, TUPLE, DICT, SET, BYTES, SCALAR, ARRAY, TENSOR, CONTEXT, RECORD = range(10)


SCALARS = frozenset({type(None), bool, int, float, str, bytes})
"""Types that msgpack has itself; the keys of a dict are of one of them too."""
MAX_DEPTH = 16
"""Limit of nested containers in an encoded value; one more in a message of several."""

Value: TypeAlias = Any
Node: TypeAlias = list[Any]


class Reader(Unpacking):
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
        return _READERS[tag](self, node, depth)

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


_Read = Callable[[Reader, Node, int], Value]


def _read_set(reader: Reader, node: Node, depth: int) -> set[Value]:
    items = reader.values(node[1:], depth)
    try:
        found = set(items)
    except TypeError as error:
        raise CodecError(f"A set holds what no set can: {error}.") from error
    if len(found) != len(items):
        raise CodecError("A set has an item twice.")
    return found


def _read_bytes(reader: Reader, node: Node, _depth: int) -> bytes:
    _, size, own = _of_length(node, 3)
    if type(size) is not int or size < 0:
        raise CodecError(f"The size of bytes is {shorten(size)}.")
    return bytes(reader.take(size, own))


def _read_scalar(_reader: Reader, node: Node, _depth: int) -> Value:
    _, code, raw = _of_length(node, 3)
    if type(raw) is not bytes:
        raise CodecError(f"The number of a scalar is {shorten(raw)}; expected are its bytes.")
    number = Unpacking([memoryview(raw)], len(raw))
    array = number.array(code, False, [])
    number.finish()
    return array[()]


def _read_array(reader: Reader, node: Node, _depth: int) -> NumpyArray:
    _, code, own = _of_length(node[:3], 3)
    return reader.array(code, own, node[3:])


def _read_tensor(reader: Reader, node: Node, _depth: int) -> Value:
    _, code, own = _of_length(node[:3], 3)
    return tensor_of(reader.array("u2" if code == "bf16" else code, own, node[3:]), code)


def _read_context(reader: Reader, node: Node, depth: int) -> Context:
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


def _read_record(reader: Reader, node: Node, depth: int) -> object:
    _, name = _of_length(node[:2], 2)
    return RECORDS.build(name, reader.pairs(node[2:], depth))


def _of_length(node: Node, length: int) -> Node:
    if len(node) != length:
        raise CodecError(f"A value has {len(node)} parts where it needs {length}: {shorten(node)}.")
    return node


# In the order of their tags.
_READERS: tuple[_Read, ...] = (
    lambda reader, node, depth: reader.values(node[1:], depth),
    lambda reader, node, depth: tuple(reader.values(node[1:], depth)),
    lambda reader, node, depth: reader.pairs(node[1:], depth),
    _read_set,
    _read_bytes,
    _read_scalar,
    _read_array,
    _read_tensor,
    _read_context,
    _read_record,
)
