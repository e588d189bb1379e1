"""Encoded values arrive unchanged; an error names the path of one that cannot be encoded."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as npst

from ding_lite.errors import CodecError
from ding_lite.io.dtypes import DTYPES
from ding_lite.parallel.wire.arrays import MAX_ARRAYS, MAX_BUFFERS
from ding_lite.parallel.wire.codec import MAX_META_BYTES, decode, encode
from ding_lite.records import register
from ding_lite.runtime.context import Context, Lineage, ParallelContext

LARGE = 16 * 1024
TORCH_DTYPES = [
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
]


@register(name="test_codec.Episode")
@dataclasses.dataclass
class Episode:
    ret: float
    steps: Any


@register(name="test_codec.Frozen")
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    obs: Any
    terminated: bool = False


def travel(tree: Any, **options: Any) -> Any:
    """Send a tree to another node: over a wire its bytes are no longer the sender's."""
    encoded = encode(tree, **options)
    buffers = [memoryview(bytearray(buffer)) for buffer in encoded.buffers]
    return decode(bytes(encoded.meta), buffers)


def same(a: Any, b: Any) -> bool:
    """Compare two trees: types, values, NaN, the signs of zeros, dtypes, shapes."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and same(bits(a), bits(b))
    if isinstance(a, dict):
        return [*map(repr, a)] == [*map(repr, b)] and same([*a.values()], [*b.values()])
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, set):  # a NaN is no member of another set
        return sorted(map(repr, a)) == sorted(map(repr, b))
    if isinstance(a, float):
        return math.copysign(1.0, a) == math.copysign(1.0, b) and (a == b or (a != a and b != b))
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return bool(a == b)


def bits(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    same_size = tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor
    return same_size.numpy(force=True)


plain = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1)
keys = plain | st.text(max_size=8) | st.binary(max_size=4)
scalars = plain | st.floats() | st.text() | st.binary(max_size=64)
shapes = npst.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=3)
dtypes = st.sampled_from([np.dtype(order + code) for code in DTYPES for order in "<>"])
arrays = dtypes.flatmap(lambda dtype: npst.arrays(dtype, shapes))


@st.composite
def views(draw: st.DrawFn) -> Any:
    """Draw arrays that are not stored in a row: transposed, reversed, with gaps."""
    array = draw(arrays)
    if array.ndim:
        array = array.transpose(draw(st.permutations(range(array.ndim))))
        array = array[(slice(None, None, draw(st.sampled_from([1, 2, -1]))), ...)]
    return array


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    """Draw tensors of every dtype from random bytes, stored in a row or not."""
    shape = draw(shapes)
    dtype = draw(st.sampled_from(TORCH_DTYPES))
    size = math.prod(shape) * dtype.itemsize
    raw = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    raw = raw % 2 if dtype is torch.bool else raw.copy()
    tensor = torch.from_numpy(raw).view(dtype) if size else torch.empty(0, dtype=dtype)
    tensor = tensor.reshape(shape)
    return tensor.permute(draw(st.permutations(range(len(shape))))) if shape else tensor


leaves = st.one_of(
    scalars, views(), tensors(), arrays.filter(lambda a: a.size).map(lambda a: a.flat[0])
)
hashables = st.one_of(scalars, st.tuples(scalars, scalars))


def trees_of(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> Any:
    """Draw trees with these leaves, and dicts with these keys."""
    return st.recursive(
        leaves,
        lambda children: st.one_of(
            st.lists(children, max_size=4),
            st.lists(children, max_size=4).map(tuple),
            st.dictionaries(keys, children, max_size=4),
            st.sets(hashables, max_size=4),
            st.builds(Episode, st.floats(), children),
            st.builds(Frozen, obs=children, terminated=st.booleans()),
        ),
        max_leaves=12,
    )


trees = trees_of(leaves, keys)


def little(tree: Any) -> Any:
    """Return a tree as it is decoded: with its arrays in little-endian order."""
    if isinstance(tree, np.generic):
        return little(np.asarray(tree))[()]
    if isinstance(tree, np.ndarray):
        return tree.astype(tree.dtype.newbyteorder("<"))
    if isinstance(tree, dict):
        return {key: little(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map(little, tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {f.name: little(getattr(tree, f.name)) for f in dataclasses.fields(tree)}
        return type(tree)(**fields)
    return tree


@settings(max_examples=100)
@given(trees, st.booleans())
def test_a_tree_arrives_as_it_was(tree: Any, borrow: bool) -> None:
    assert same(travel(tree, borrow=borrow), little(tree))


@given(st.dictionaries(st.text(max_size=8), trees, max_size=4))
def test_a_tree_of_encoded_parts_decodes_as_the_whole(items: dict[str, Any]) -> None:
    parts = {key: encode(value) for key, value in items.items()}
    assert same(travel(parts), little(items))


@pytest.mark.parametrize("size", [LARGE - 8, 5 * LARGE])
@pytest.mark.parametrize("dtype", [*DTYPES.values(), np.dtype(">f8")], ids=str)
def test_arrays_of_any_size_and_layout_arrive(size: int, dtype: np.dtype[Any]) -> None:
    flat = (np.arange(size // dtype.itemsize) % 2).astype(dtype)
    square = flat[: 24 * (len(flat) // 24)].reshape(4, 6, -1)
    for array in (flat, square, np.asfortranarray(square), square[::2], square.T, flat[::-1]):
        assert same(travel([array]), little([array]))


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_tensors_of_any_size_and_layout_arrive(dtype: torch.dtype) -> None:
    for count in (0, 1, 24, 24 * LARGE):
        flat = (torch.arange(count) % 2).to(dtype)
        for tensor in (flat, flat.reshape(-1, 3, 2) if count > 1 else flat, flat[::2]):
            assert same(travel([tensor, tensor.T if tensor.ndim == 2 else tensor])[0], tensor)


def test_a_tensor_arrives_as_its_numbers_alone() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    conjugated = torch.tensor([1 + 2j]).conj()
    found = travel([parameter, conjugated, torch.nn.Linear(2, 2).state_dict()])
    assert (type(found[0]), found[0].requires_grad) == (torch.Tensor, False)
    assert same(found[0], parameter.detach())
    assert found[1].tolist() == [1 - 2j]
    assert (type(found[2]), [*found[2]]) == (dict, ["weight", "bias"])


def test_a_context_arrives_with_its_kept_keys() -> None:
    first = Context(obs=np.arange(3), env_step=7, total_step=5)
    first.keep("env_step", "not_yet_set")
    ctx = Lineage(first).next_of(first)
    ctx.finish = True
    found = travel({"ctx": ctx, "other": Context()})["ctx"]
    assert type(found) is Context
    assert dict(found) == {"total_step": 6, "env_step": 7}
    assert (found.kept, found.finish) == (("env_step", "not_yet_set"), True)

    parallel = ParallelContext()
    parallel._receive(3, {"train_iter": 9})
    assert travel(parallel) == {"total_step": 0, "train_iter": 9}


def test_a_large_text_large_bytes_and_a_mapped_file_arrive(tmp_path: Path) -> None:
    for value in ("x" * 100_000, b"\x00\xff" * LARGE, [b"a" * LARGE, b"b" * (LARGE - 1), b""]):
        assert same(travel(value), value)
    mapped = np.memmap(tmp_path / "x", np.int16, "w+", shape=(3, 2))
    assert same(travel([mapped]), [np.zeros((3, 2), np.int16)])


def shares_memory(buffer: Any, other: Any) -> bool:
    return np.shares_memory(np.frombuffer(buffer, np.uint8), np.frombuffer(other, np.uint8))


def test_large_arrays_travel_without_a_copy_on_either_side() -> None:
    array = np.arange(LARGE, dtype=np.float32)
    tensor = torch.arange(LARGE, dtype=torch.bfloat16)
    sent = encode({"a": array, "t": tensor}, borrow=True)
    assert shares_memory(sent.buffers[0], array)
    assert shares_memory(sent.buffers[1], bits(tensor))

    arrived = [memoryview(bytearray(buffer)) for buffer in sent.buffers]
    found = decode(sent.meta, arrived)
    assert shares_memory(arrived[0], found["a"])
    assert shares_memory(arrived[1], bits(found["t"]))
    assert found["a"].flags.writeable
    found["t"] += 1


def test_an_encoded_value_is_a_snapshot() -> None:
    numbers: list[Any] = [np.ones(LARGE), np.ones(3), torch.ones(LARGE), torch.ones(3)]
    tree: list[Any] = [*numbers, [1]]
    encoded = encode(tree)
    for each in numbers:
        each[:] = 0
    tree[-1].append(2)
    *found, last = decode(encoded.meta, encoded.buffers)
    assert last == [1]
    assert [each.min() for each in found] == [1, 1, 1, 1]


def test_what_has_arrived_as_bytes_is_relayed_without_a_copy() -> None:
    frame = bytes(8 * LARGE)
    arrived = decode(encode(np.zeros(LARGE)).meta, [memoryview(frame)])
    (relayed,) = encode(arrived).buffers
    assert shares_memory(relayed, frame)
    (part,) = encode(arrived[LARGE // 2 :]).buffers  # which would keep all of the frame
    assert not shares_memory(part, frame)


def test_a_read_only_array_that_can_still_change_is_copied() -> None:
    memory = bytearray(8 * LARGE)
    encoded = encode(np.frombuffer(memoryview(memory).toreadonly(), np.float64))
    memory[:] = b"\1" * len(memory)
    assert not decode(encoded.meta, encoded.buffers).any()


def test_borrowed_memory_that_is_not_in_a_row_is_copied() -> None:
    array = np.ones((LARGE, 2))
    encoded = encode(array[:, 0], borrow=True)
    array[:] = 0
    assert decode(encoded.meta, encoded.buffers).min() == 1


def test_encoded_buffers_are_read_only() -> None:
    encoded = encode([np.ones(LARGE), np.ones(3), torch.ones(LARGE), torch.ones(3)], borrow=True)
    assert all(buffer.readonly for buffer in encoded.buffers)
    large, small, large_tensor, small_tensor = decode(encoded.meta, encoded.buffers)
    with pytest.raises(ValueError, match="read-only"):
        large[0] = 0
    small[0] = 0
    large_tensor.zero_()
    small_tensor.zero_()
    assert [x.min() for x in decode(encoded.meta, encoded.buffers)] == [1, 1, 1, 1]


def test_a_small_array_does_not_keep_the_whole_message_alive() -> None:
    found = travel([np.ones(3), torch.ones(3), np.ones(1000)])
    assert found[0].base is None
    assert found[1].untyped_storage().nbytes() == 12


def test_more_large_arrays_than_there_are_buffers_share_one() -> None:
    tree = [np.full(LARGE, i % 256, np.uint8) for i in range(MAX_BUFFERS + 3)]
    encoded = encode(tree, borrow=True)
    assert len(encoded.buffers) == MAX_BUFFERS
    assert same(decode(encoded.meta, encoded.buffers), tree)
    assert same(travel([b"x" * LARGE] * MAX_BUFFERS), [b"x" * LARGE] * MAX_BUFFERS)


class Rude:
    def _raise(self, *_: object) -> Any:
        raise RuntimeError("do not touch")

    __repr__ = __str__ = __len__ = __iter__ = __eq__ = __bool__ = __format__ = _raise
    __hash__ = object.__hash__


class RudeClass(type):
    def __hash__(cls) -> int:
        raise RuntimeError("do not touch")


class OfRudeClass(metaclass=RudeClass): ...


class Disguised:
    @property
    def __class__(self) -> Any:
        raise LookupError("do not look")

    @__class__.setter
    def __class__(self, _: Any) -> None: ...


class Color(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Point(NamedTuple):
    x: int


class MyStr(str): ...


class MyInt(int): ...


@dataclasses.dataclass
class Unknown:
    x: int


def without_a_field() -> Episode:
    episode = Episode(1.0, 2)
    del episode.ret
    return episode


def keeps(key: str) -> Context:
    ctx = Context()
    ctx.keep(key)
    return ctx


def nested(depth: int) -> list[Any]:
    tree: list[Any] = []
    for _ in range(depth):
        tree = [tree]
    return tree


def doubled(times: int) -> list[Any]:
    """Return a nested list that uses little memory and has 2 ** times texts of 100 bytes."""
    tree: list[Any] = ["x" * 100, "y" * 100]
    for _ in range(times - 1):
        tree = [tree, tree]
    return tree


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
DEEP: Any = [1]
for _ in range(15):
    DEEP = {"k": DEEP}
BITS, CODES, RAISES = "of more than 64 bits", "which is no Unicode", "raises RuntimeError"
UNSENDABLE: dict[str, tuple[Any, str | None, str]] = {
    # The value, its path and what is said of it.
    "object": (object(), "", "an object"),
    "deep object": ({"a": [1, {2: (0, object())}]}, "['a'][1][2][1]", "an object"),
    "many tuples in a set": (set(zip(range(1_001))), "", "a set with 1001 tuples or records in it"),
    "type in a set": ({"a": {1, (2, object)}}, None, "a type"),
    "function": (lambda: None, "", "a function"),
    "generator": (iter([1]), "", "a list_iterator"),
    "enum": ([Color.RED], "[0]", "a Color, which cannot be sent. Send its `.value`"),
    "int enum": ([Number.ONE], "[0]", "Send its `.value`"),
    "named tuple": ((Point(1),), "[0]", "a Point, which cannot be sent. Send `tuple(...)`"),
    "subclass of dict": (collections.defaultdict(int), "", "Send `dict(...)`"),
    "subclass of str": (MyStr("a"), "", "Send `str(...)`"),
    "subclass of int": (MyInt(1), "", "Send `int(...)`"),
    "frozenset": (frozenset([1]), "", "Send `set(...)`"),
    "memoryview": (memoryview(b"x"), "", "Send `bytes(...)`"),
    "extension type": ([msgspec.msgpack.Ext(0, b""), 1], "[0]", "an Ext"),
    "raw msgpack": ([msgspec.Raw(b"\x01")], "[0]", "a Raw"),
    "dataclass": (Unknown(1), "", "an Unknown, which cannot be sent. Decorate its class with"),
    "complex in a record": (Episode(1.0, [1, 2j]), "['steps'][1]", "a complex"),
    "record without a field": ([0, without_a_field()], "[1]", "raises AttributeError"),
    "int of 65 bits": ({"n": 2**64}, "['n']", f"the int 18446744073709551616, {BITS}"),
    "int of 5,001 digits": ({"n": [10**5_000]}, "['n'][0]", BITS),
    "int beside all else": ({"n": [None, True, 1, 0.5, "a", b"b", 2**64]}, "['n'][6]", BITS),
    "int for a key": ({2**70: 1}, "", BITS),
    "lone surrogate": ({"n": ["a", "\ud800"]}, "['n'][1]", f"the str '\\ud800', {CODES}"),
    "long lone surrogate": ("\ud800" * 5_000, "", CODES),
    "surrogate for a key": ({"n": {"\ud800": 1}}, "['n']", CODES),
    "surrogate that is kept": ([keeps("\ud800")], "[0][0]", CODES),
    "surrogate in a record": (Episode(1.0, "\udfff"), "['steps']", CODES),
    "tuple for a key": ({"d": {(1, 2): 3}}, "['d']", "a dict with the key (1, 2), a tuple"),
    "scalar for a key": ({"d": {np.int64(3): 3}}, "['d']", "a dict with the key np.int64(3)"),
    "rude": (Rude(), "", "a Rude"),
    "rude for a key": ({Rude(): 1}, "", "a dict with the key <"),
    "rude in a set": ({Rude()}, "[0]", "a Rude"),
    "rude class": (OfRudeClass(), "", RAISES),
    "disguised": (Disguised(), "", "raises LookupError"),
    "objects": ([np.array([object()])], "[0]", "an array of dtype object"),
    "rude objects": (np.array([Rude()], object), "", "an array of dtype object"),
    "texts": ([np.array(["x"])], "[0]", "an array of dtype <U1"),
    "text": ([np.str_("x")], "[0]", "an array of dtype <U1"),
    "void": (np.zeros(1, [("a", "i4")])[0], "", "an array of dtype [('a', '<i4')]"),
    "quadruple": ([np.zeros(1, np.longdouble)], "[0]", "an array of dtype float128"),
    "masked": ([np.ma.zeros(1)], "[0]", "a MaskedArray, which cannot be sent. Send `np"),
    "array of 9 axes": ([np.zeros((1,) * 9)], "[0]", "an array of 9 dimensions"),
    "tensor of 9 axes": ([torch.zeros((1,) * 9)], "[0]", "an array of 9 dimensions"),
    "many empty rows": ([np.empty((2**21, 0))], "[0]", "an array without numbers of the shape (2"),
    "meta": ([torch.zeros(1, device="meta")], "[0]", "is a Tensor without data"),
    "sparse": ([torch.zeros(2, 2).to_sparse()], "[0]", "layout torch.sparse_coo"),
    "float8": ([torch.zeros(1, dtype=torch.float8_e4m3fn)], "[0]", "of torch.float8_e4m3fn"),
    "not filled": ([torch.nn.UninitializedParameter()], "[0]", "Parameter without data"),
    "holding itself": (ENDLESS, "[0]" * 16, "the 17th container within a container"),
    "17 containers": ([DEEP], "[0]" + "['k']" * 15, "the 17th container within a container"),
    "deep": (nested(100_000), None, "the 17th container within a container"),
    "doubled": (doubled(15), None, "bytes of values that are no arrays"),
    "a million numbers": ([1.5] * 2**20, "", "bytes of values that are no arrays"),
    "text of a megabyte": ({"m": "x" * MAX_META_BYTES}, "", "bytes of values that are no arrays"),
    "2 GiB of one number": (np.broadcast_to(np.float32(0), (2**40,)), "", "bytes of arrays in its"),
    "2 GiB of a tensor": (torch.zeros(1).expand(2**40), "", "bytes of arrays in its message"),
    "many arrays": ([np.zeros(1)] * (MAX_ARRAYS + 1), f"[{MAX_ARRAYS}]", "array number 4097 of"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSENDABLE)
def test_unsendable_values_are_named(name: str) -> None:
    value, path, complaint = UNSENDABLE[name]
    message = refusal(value)
    assert complaint in message
    if path is not None:
        assert message.startswith(f"`ctx{path}` is ")
    for wrapped in ({"a": [1, (value, 2)]}, Episode(1.0, value)):
        assert len(refusal(wrapped)) < 1_000


def refusal(value: Any) -> str:
    """Encode a value that cannot be sent; return what is said of it."""
    with pytest.raises(CodecError, match="cannot be sent") as caught:
        encode(value, name="ctx")
    return str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_a_tensor_on_a_gpu_arrives_on_the_cpu(dtype: torch.dtype) -> None:
    sent = torch.tensor([0, 1], dtype=dtype, device="cuda")
    assert torch.equal(travel({"w": sent})["w"], sent.cpu())


def test_sixteen_containers_may_be_nested_and_be_part_of_one_more() -> None:
    assert same(travel(DEEP), DEEP)
    assert same(travel({"part": encode(DEEP)}), {"part": DEEP})


def test_parts_that_hold_too_many_arrays_together_are_refused() -> None:
    many = encode([np.zeros(1)] * 4000)
    assert len(travel([many])[0]) == 4000
    with pytest.raises(CodecError, match=r"`ctx\['b'\]` is one of 8000 arrays in its message"):
        encode({"a": many, "b": many}, name="ctx")

    large = encode([np.zeros(LARGE, np.uint8)] * 600, borrow=True)
    with pytest.raises(CodecError, match=r"fewer than 1023 of them large"):
        encode([large, large])


def test_the_size_of_an_encoded_value_counts_meta_and_buffers() -> None:
    encoded = encode([np.zeros(LARGE), np.zeros(2, np.int8)])
    assert encoded.nbytes == len(encoded.meta) + 8 * LARGE + 2
    assert encoded.num_arrays == 2
