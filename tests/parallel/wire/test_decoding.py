"""Decoding any malformed message raises CodecError, and takes no memory."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.msgpack import Ext

from ding_lite.errors import CodecError
from ding_lite.parallel.wire.codec import MAX_META_BYTES, decode, encode
from ding_lite.records import RecordError, register
from tests.parallel.wire.test_codec import nested


@register(name="test_reading.Step")
@dataclass
class Step:
    reward: float
    obs: Any


def meta(tree: Any, packed_bytes: Any = 0) -> bytes:
    return msgspec.msgpack.encode([packed_bytes, tree])


TUPLE, SET, BYTES, SCALAR, ARRAY, TENSOR, CONTEXT, RECORD = (Ext(k, b"") for k in range(8))
FOUR_BYTES = [memoryview(b"\x00\x00\x80\x3f")]
PART, STEP = "A value has", "test_reading.Step"


@pytest.mark.parametrize(
    ("tree", "buffers", "complaint"),
    [
        (TUPLE, [], "is no value"),
        ([1, TUPLE], [], "is no value"),
        (datetime.fromtimestamp(0, UTC), [], "is no value"),
        ([Ext(8, b"")], [], "type 8 of b'' is no tag; they go from 0 to 7"),
        ([Ext(0, b"x")], [], "type 0 of b'x' is no tag"),
        (nested(18), [], "more than 18 containers"),
        ([TUPLE, nested(17)], [], "more than 18 containers"),
        ({(): 1}, [], "A dict has the key (); expected is a scalar"),
        ([{"a": {(1, 2): 1}}], [], "A dict has the key (1, 2)"),
        ([SET, 1, 1], [], "A set has an item twice"),
        ([SET, 1, True], [], "A set has an item twice"),
        ([SET, [0]], [], "A set holds what no set can"),
        ([SET, *[[TUPLE, n] for n in range(1001)]], [], "more than 1000 tuples"),
        ([SET, 0, [TUPLE, *[[TUPLE, n] for n in range(1000)]]], [], "more than 1000 tuples"),
        ([BYTES, 4], FOUR_BYTES, PART),
        ([BYTES, 4, 1], FOUR_BYTES, "is said by a bool, not 1"),
        ([BYTES, -1, True], FOUR_BYTES, "The size of bytes is -1"),
        ([BYTES, 3, True], FOUR_BYTES, "A value of 3 bytes has a buffer of 4 bytes"),
        ([BYTES, 5, False], FOUR_BYTES, "reaches beyond the end of the packed buffer"),
        ([SCALAR, "f4"], [], PART),
        ([SCALAR, "f4", "1234"], [], "The number of a scalar is '1234'"),
        ([SCALAR, "f4", b"123"], [], "reaches beyond"),
        ([SCALAR, "f4", b"12345"], [], "Left over"),
        ([SCALAR, "b1", b"\x02"], [], "bytes other than 0 and 1"),
        ([ARRAY, "O", True, 1], FOUR_BYTES, "the unknown dtype 'O'"),
        ([ARRAY, ">f4", True, 1], FOUR_BYTES, "the unknown dtype '>f4'"),
        ([ARRAY, ["f4"], True, 1], FOUR_BYTES, "the unknown dtype ['f4']"),
        ([ARRAY, "bf16", True, 2], FOUR_BYTES, "the unknown dtype 'bf16'"),
        ([ARRAY, "f4", 0, 1], FOUR_BYTES, "is said by a bool, not 0"),
        ([ARRAY, "f4", True, 2], FOUR_BYTES, "A value of 8 bytes has a buffer of 4 bytes"),
        ([ARRAY, "f4", True, 0], FOUR_BYTES, "A value of 0 bytes has a buffer of 4 bytes"),
        ([ARRAY, "f4", True, -1], FOUR_BYTES, "An array has the shape [-1]"),
        ([ARRAY, "f4", True, -1, -1], FOUR_BYTES, "An array has the shape [-1, -1]"),
        ([ARRAY, "f4", True, 1.0], FOUR_BYTES, "An array has the shape [1.0]"),
        ([ARRAY, "f4", True, True], FOUR_BYTES, "An array has the shape [True]"),
        ([ARRAY, "f4", True, *[1] * 9], FOUR_BYTES, "An array has the shape"),
        ([ARRAY, "u1", True, 2**32, 2**32], FOUR_BYTES, "of 18446744073709551616 bytes has"),
        ([ARRAY, "f4", False, 2**31], FOUR_BYTES, "reaches beyond the end of the packed buffer"),
        ([ARRAY, "f4", False, 0, 2**63], [], "the impossible shape [0, 9223372036854775808]"),
        ([ARRAY, "f4", False, 2**20 + 1, 0], [], "the limit is 1048576 rows"),
        ([TENSOR, "f4", False, 2**14, 2**14, 0, 2], [], "the limit is 1048576 rows"),
        ([ARRAY, "b1", True, 4], FOUR_BYTES, "bytes other than 0 and 1"),
        ([ARRAY, "f4", True, 1], [], "A value of 4 bytes has a buffer of none bytes"),
        ([0, *[[ARRAY, "u1", False, 0]] * 4097], [], "more than 4096 arrays"),
        (1, FOUR_BYTES, "Left over are 1 buffers"),
        ([TENSOR, "f4", True, 1], [*FOUR_BYTES, *FOUR_BYTES], "Left over are 1 buffers"),
        ([TENSOR, "bf16", True, 1], FOUR_BYTES, "A value of 2 bytes has a buffer of 4"),
        ([CONTEXT, False, []], [], PART),
        ([CONTEXT, 0, [], {}], [], "A context consists of"),
        ([CONTEXT, False, [], []], [], "A context consists of"),
        ([CONTEXT, False, [3], {}], [], "keeps a key that is no str"),
        ([CONTEXT, False, ["keep"], {}], [], "A context may not hold its keys"),
        ([CONTEXT, False, [], {"keep": 1}], [], "A context may not hold its keys"),
        ([CONTEXT, False, [], {1: 1}], [], "A context may not hold its keys"),
        ([CONTEXT, False, [], {(): 1}], [], "A dict has the key ()"),
        ([CONTEXT, False, [], {"finish": [ARRAY, "f4", True, 1]}], FOUR_BYTES, "an item `finish`"),
        ([RECORD], [], PART),
        ([RECORD, 3, {}], [], "A record has an int for a name"),
        ([RECORD, STEP, []], [], "The fields of a record are []"),
        ([RECORD, "os.system", {"command": "true"}], [], "No class is registered as 'os.system'"),
        ([RECORD, "test_reading.Ste", {}], [], 'Did you mean "test_reading.Step"?'),
        ([RECORD, STEP, {"reward": 1.0}], [], "missing 1 required"),
        ([RECORD, STEP, {"reward": 1.0, 5: 1}], [], "cannot be built from the fields"),
        ([RECORD, STEP, {"reward": 1.0, "obs": 1, "x": 1}], [], "unexpected keyword"),
    ],
    ids=lambda value: re.sub(r" (object )?at 0x[0-9a-f]+", "", str(value)),
)
def test_malformed_messages_are_refused(tree, buffers, complaint) -> None:
    packed = 4 if complaint.startswith("reaches") and buffers else 0
    with pytest.raises(CodecError) as caught:
        decode(meta(tree, packed), buffers)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("packed_bytes", "complaint"),
    [
        (3, "The packed buffer is 4 bytes; the meta says 3 bytes"),
        (-1, "The packed buffer is 4 bytes"),
        (2**40, "The packed buffer is 4 bytes"),
        (None, "is no msgpack as it should be"),
        ("4", "is no msgpack as it should be"),
        (0, "beyond the end of the packed buffer, which has 0 bytes"),
        (4, "Left over are 0 buffers and 2 bytes"),
    ],
)
def test_the_packed_buffer_is_as_long_as_the_meta_says(packed_bytes: Any, complaint: str) -> None:
    with pytest.raises(CodecError, match=complaint):
        decode(meta([ARRAY, "u1", False, 2], packed_bytes), FOUR_BYTES)
    with pytest.raises(CodecError, match=r"not there|as it should be|beyond the end"):
        decode(meta([ARRAY, "u1", False, 2], packed_bytes), [])


NO_PAIR = [b"", b"\x92\x00\xc0\xc0", b"\x93\x00\xc0\xc0", b"\x91\x00", b"\xc0"]
NO_TREE = [
    *(b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"),
    *(b"\xd6\xff\x00\x00\x00\x00", b"\xa1\xff", b"\x81\x80\x01", b"\x82\x01\xc0\x01\xc0"),
    *(b"\x82\xa1a\xc0\xa1a\xcb" + bytes(8), b"\xcc\x01", b"\xd9\x01a", b"\xdc\x00\x00"),
    *(b"\x91\xc8\x00\x00\x00", b"\x91" * 100_000 + b"\xc0", b"\x91" * 900 + b"\xc0"),
    *(b"\xdd\x00\x0f\xff\xff" * 100_000, b"\xc0" * MAX_META_BYTES),
]


@pytest.mark.parametrize(
    "raw",
    [*NO_PAIR, *(b"\x92\x00" + tree for tree in NO_TREE)],
    ids=lambda raw: f"{raw[:12].hex()} of {len(raw)}",
)
def test_malformed_or_explosive_msgpack_is_refused(raw: bytes) -> None:
    with pytest.raises(CodecError):
        decode(raw, [])


def test_decoding_leaves_its_input_unchanged() -> None:
    encoded = encode([[1, 2], {"a": np.zeros(3)}])
    first = decode(encoded.meta, encoded.buffers)
    first[0].append(3)
    assert decode(encoded.meta, encoded.buffers)[0] == [1, 2]


def test_a_record_that_cannot_be_built_is_reported_only_if_all_else_is_well_formed() -> None:
    unknown = [RECORD, "Unknown", {"x": [ARRAY, "f4", False, 1]}]
    last = [ARRAY, "f4", False, 1]
    buffers = [memoryview(bytes(8))]
    with pytest.raises(RecordError, match="No class is registered as 'Unknown'"):
        decode(meta([SET, unknown, unknown], 8), buffers)
    with pytest.raises(RecordError):
        decode(meta([unknown, last], 8), buffers)
    for malformed in ([unknown, last, last], [unknown], [unknown, last, TUPLE]):
        with pytest.raises(CodecError) as caught:
            decode(meta(malformed, 8), buffers)
        assert not isinstance(caught.value, RecordError)


def colliding(count: int) -> list[tuple[int, int]]:
    """Return tuples with the same hash, by the formula of CPython (xxHash)."""
    one, two, five = 11400714785074694791, 14029467366897019727, 2870177450012600261
    inverse = pow(two, -1, 2**64)
    found: list[tuple[int, int]] = []
    first = 0
    while len(found) < count:
        lane = (five + first * two) % 2**64
        lane = (lane << 31 | lane >> 33) * one % 2**64
        second = (12345 - lane) * inverse % 2**64
        second -= 2**64 * (second >= 2**63)
        if abs(second) < 2**61 - 1 and second != -1:
            found.append((first, second))
        first += 1
    return found


def as_dict(keys: Sequence[object]) -> bytes:
    pairs = b"".join(msgspec.msgpack.encode(key) + b"\xc0" for key in keys)
    return b"\xdf" + struct.pack(">I", len(keys)) + pairs


def test_many_keys_of_one_hash_are_refused_before_they_are_compared() -> None:
    keys = colliding(10_000)
    assert len({*map(hash, keys)}) == 1
    began = time.perf_counter()
    with pytest.raises(CodecError, match="more than 1000 tuples"):
        decode(meta([SET, *[[TUPLE, *key] for key in keys]]), [])
    for inner in (as_dict(keys), b"\x92\x01" + as_dict(["a", *keys])):
        with pytest.raises(CodecError, match="has the key"):
            decode(b"\x92\x00" + inner, [])
    assert time.perf_counter() - began < 1.0  # 2 s and more if they are compared
    deep = b"\x91" * 40 + as_dict([f"key {n}" for n in range(2_000)])
    with pytest.raises(CodecError, match="within each other"):
        decode(b"\x92\x00" + deep, [])


def test_large_dicts_of_plain_keys_arrive() -> None:
    sent = [{n: [n] for n in range(5_000)}, {f"key {n}": (n, {n}) for n in range(2_000)}]
    assert decode(encode(sent).meta, []) == sent
