"""Decoding any malformed message raises CodecError, and takes no memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

from ding_lite.errors import CodecError
from ding_lite.parallel.wire.codec import MAX_META_BYTES, decode, encode
from ding_lite.records import register


@register(name="test_reading.Step")
@dataclass
class Step:
    reward: float
    obs: Any


def meta(tree: Any, packed_bytes: Any = 0) -> bytes:
    return msgspec.msgpack.encode([packed_bytes, tree])


def nested(depth: int) -> list[Any]:
    tree: list[Any] = [0]
    for _ in range(depth - 1):
        tree = [0, tree]
    return tree


FOUR_BYTES = [memoryview(b"\x00\x00\x80\x3f")]
PART = "A value has"


@pytest.mark.parametrize(
    ("tree", "buffers", "complaint"),
    [
        ([], [], "[] is neither a scalar nor an array with a tag"),
        ({"a": 1}, [], "{'a': 1} is neither a scalar"),
        ([0, {}], [], "{} is neither a scalar"),
        (msgspec.msgpack.Ext(1, b"x"), [], "is neither a scalar"),
        ([10], [], "10 is no tag; they go from 0 to 9"),
        ([-1], [], "-1 is no tag"),
        ([True, 1], [], "True is no tag"),
        (["list"], [], "'list' is no tag"),
        ([[0]], [], "[0] is no tag"),
        (nested(18), [], "more than 17 containers"),
        (nested(500), [], "more than 17 containers"),
        ([2, "a"], [], "in pairs"),
        ([2, [0], 1], [], "in pairs"),
        ([2, "a", 1, "a", 2], [], "A dict has a key twice"),
        ([3, 1, 1], [], "A set has an item twice"),
        ([3, 1, True], [], "A set has an item twice"),
        ([3, [0]], [], "A set holds what no set can"),
        ([4, 4], FOUR_BYTES, PART),
        ([4, 4, 1], FOUR_BYTES, "is said by a bool, not 1"),
        ([4, -1, True], FOUR_BYTES, "The size of bytes is -1"),
        ([4, 3, True], FOUR_BYTES, "A value of 3 bytes has a buffer of 4 bytes"),
        ([4, 5, False], FOUR_BYTES, "reaches beyond the end of the packed buffer"),
        ([5, "f4"], [], PART),
        ([5, "f4", b"1234", 1], [], PART),
        ([5, "f4", "1234"], [], "The number of a scalar is '1234'"),
        ([5, "f4", b"123"], [], "reaches beyond"),
        ([5, "f4", b"12345"], [], "Left over"),
        ([5, "b1", b"\x02"], [], "bytes other than 0 and 1"),
        ([6, "f4"], FOUR_BYTES, PART),
        ([6, "O", True, 1], FOUR_BYTES, "the unknown dtype 'O'"),
        ([6, ">f4", True, 1], FOUR_BYTES, "the unknown dtype '>f4'"),
        ([6, ["f4"], True, 1], FOUR_BYTES, "the unknown dtype ['f4']"),
        ([6, "bf16", True, 2], FOUR_BYTES, "the unknown dtype 'bf16'"),
        ([6, "f4", 0, 1], FOUR_BYTES, "is said by a bool, not 0"),
        ([6, "f4", True, 2], FOUR_BYTES, "A value of 8 bytes has a buffer of 4 bytes"),
        ([6, "f4", True, 0], FOUR_BYTES, "A value of 0 bytes has a buffer of 4 bytes"),
        ([6, "f4", True, -1], FOUR_BYTES, "An array has the shape [-1]"),
        ([6, "f4", True, -1, -1], FOUR_BYTES, "An array has the shape [-1, -1]"),
        ([6, "f4", True, 1.0], FOUR_BYTES, "An array has the shape [1.0]"),
        ([6, "f4", True, True], FOUR_BYTES, "An array has the shape [True]"),
        ([6, "f4", True, "1"], FOUR_BYTES, "An array has the shape ['1']"),
        ([6, "f4", True, [1]], FOUR_BYTES, "An array has the shape"),
        ([6, "f4", True, *[1] * 9], FOUR_BYTES, "An array has the shape"),
        ([6, "u1", True, 2**31, 2**31], FOUR_BYTES, "A value of 4611686018427387904 bytes has"),
        ([6, "u1", True, 2**32, 2**32], FOUR_BYTES, "A value of 18446744073709551616 bytes has"),
        ([6, "f4", False, 2**31], FOUR_BYTES, "reaches beyond the end of the packed buffer"),
        ([6, "f4", False, 2**63, 0], [], "the impossible shape [9223372036854775808, 0]"),
        ([6, "b1", True, 4], FOUR_BYTES, "bytes other than 0 and 1"),
        ([6, "f4", True, 1], [], "A value of 4 bytes has a buffer of none bytes"),
        ([0, [6, "f4", True, 1], [6, "f4", True, 1]], FOUR_BYTES, "a buffer of none bytes"),
        ([0, *[[6, "u1", False, 0]] * 4097], [], "more than 4096 arrays"),
        (1, FOUR_BYTES, "Left over are 1 buffers"),
        ([7, "f4", True, 1], [*FOUR_BYTES, *FOUR_BYTES], "Left over are 1 buffers"),
        ([7, "bf16", True, 1], FOUR_BYTES, "A value of 2 bytes has a buffer of 4"),
        ([7, "bf17", True, 1], FOUR_BYTES, "the unknown dtype 'bf17'"),
        ([8, False], [], PART),
        ([8, 0, 0], [], "A context begins with"),
        ([8, False, -1], [], "A context begins with"),
        ([8, False, 2**40], [], "A context begins with"),
        ([8, False, 1, 3], [], "keeps a key that is no str"),
        ([8, False, 1, "keep"], [], "A context may not hold its keys"),
        ([8, False, 0, "keep", 1], [], "A context may not hold its keys"),
        ([8, False, 0, "_x", 1], [], "A context may not hold its keys"),
        ([8, False, 0, 1, 1], [], "A context may not hold its keys"),
        ([8, False, 0, "finish", [6, "f4", True, 1]], FOUR_BYTES, "has an item `finish`"),
        ([9], [], PART),
        ([9, 3], [], "A record has an int for a name"),
        ([9, "os.system", "command", "true"], [], "No class is registered as 'os.system'"),
        ([9, "test_reading.Ste"], [], 'Did you mean "test_reading.Step"?'),
        ([9, "test_reading.Step", "reward", 1.0], [], "missing 1 required"),
        ([9, "test_reading.Step", "reward", 1.0, 5, 1], [], "cannot be built from the fields"),
        ([9, "test_reading.Step", "reward", 1.0, "obs", 1, "x", 1], [], "unexpected keyword"),
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
        decode(meta([6, "u1", False, 2], packed_bytes), FOUR_BYTES)
    with pytest.raises(CodecError, match=r"not there|as it should be|beyond the end"):
        decode(meta([6, "u1", False, 2], packed_bytes), [])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x92\x00",
        b"\x92\x00\xc0\xc0",
        b"\x93\x00\xc0\xc0",
        b"\x91\x00",
        b"\xc0",
        b"\x92\x00\xc1",
        b"\x92\x00\xdd\xff\xff\xff\xff",
        b"\x92\x00\xdf\xff\xff\xff\xff",
        b"\x92\x00\xc6\xff\xff\xff\xff",
        b"\x92\x00\xdb\xff\xff\xff\xff",
        b"\x92\x00\xc9\xff\xff\xff\xff\x01",
        b"\x92\x00\xd6\xff\x00\x00\x00\x00",
        b"\x92\x00\xa1\xff",
        b"\x92\x00\x81\x80\x01",
        b"\x92\x00" + b"\x91" * 100_000 + b"\xc0",
        b"\x92\x00" + b"\x81\x91" * 100_000 + b"\xc0",
        b"\x92\x00" + b"\xdd\x00\x0f\xff\xff" * 100_000,
        b"\x92\x00" + b"\xc0" * MAX_META_BYTES,
    ],
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
