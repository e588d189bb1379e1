"""Envelopes arrive as they were sent; malformed ones are refused before they take memory."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import CodecError
from ding_lite.parallel.wire import messages
from ding_lite.parallel.wire.messages import HEADER_BYTES, MAX_BATCH, Envelope, Kind, pack_batch

HEADER = "<4sBBHIIQQQIIQ"
FIELDS = "magic version kind flags src dst incarnation seq ack num_buffers meta_bytes payload_bytes"
ids, counts = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
numbers = {"src": ids, "dst": ids, "incarnation": counts, "seq": counts, "ack": counts}
buffers = st.lists(st.binary(max_size=50).map(lambda b: memoryview(b)), max_size=4).map(tuple)
kinds = st.sampled_from(Kind)
envelopes = st.builds(Envelope, kind=kinds, meta=st.binary(max_size=50), buffers=buffers, **numbers)


@given(envelopes)
def test_an_envelope_arrives_as_it_was_sent(envelope: Envelope) -> None:
    frames = envelope.frames()
    assert len(frames[0]) - len(envelope.meta) == HEADER_BYTES == 56
    assert Envelope.from_frames(frames) == envelope
    assert Envelope.from_frames([memoryview(frame) for frame in frames]) == envelope
    assert Envelope.from_frames([*map(bytes, frames)]) == envelope


def test_buffers_are_the_frames_themselves() -> None:
    frame = bytearray(b"payload")
    sent = Envelope(kind=Kind.STATE, src=0, dst=1, buffers=(memoryview(frame),))
    assert sent.payload_bytes == 7
    (found,) = Envelope.from_frames(sent.frames()).buffers
    frame[0] = ord("P")
    assert bytes(found) == b"Payload"


def frames(**fields: Any) -> list[bytes]:
    """Write frames by hand; `fields` change the header."""
    values = dict.fromkeys(FIELDS.split(), 0) | {
        **{"magic": b"DING", "version": 4, "kind": 5, "num_buffers": 2},
        **{"meta_bytes": 3, "payload_bytes": 5},
    }
    return [struct.pack(HEADER, *(values | fields).values()) + b"abc", b"de", b"fgh"]


GOOD = frames()


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ([], "0 frames; expected are 1 to 1024"),
        ([GOOD[0], *[b""] * 1024], "1025 frames"),
        ([GOOD[0][:55], *GOOD[1:]], "55 bytes instead of 56"),
        (GOOD[1:], "A header has 2 bytes"),
        (frames(magic=b"DGL1"), "begins with b'DGL1'"),
        (frames(version=0), "is of version 0 of the protocol; this node speaks 4"),
        (frames(version=3), "is of version 3 of the protocol; this node speaks 4"),
        (frames(kind=0), "of kind 0 with flags 0x0: unknown"),
        (frames(kind=14), "of kind 14 with flags 0x0: unknown"),
        (frames(flags=0x8000), "of kind 5 with flags 0x8000: unknown"),
        (frames(num_buffers=1), r"\(2, 3, 5\); the header says \(1, 3, 5\)"),
        (frames(meta_bytes=2**32 - 1), r"the header says \(2, 4294967295, 5\)"),
        (frames(payload_bytes=2**64 - 1), r"the header says \(2, 3, 18446744073709551615\)"),
        (GOOD[:-1], r"are \(1, 3, 2\); the header says \(2, 3, 5\)"),
        ([*GOOD, b""], r"are \(3, 3, 5\)"),
        ([GOOD[0] + b"d", *GOOD[1:]], r"are \(2, 4, 5\)"),
    ],
    ids=str,
)
def test_malformed_messages_are_refused(wrong: list[bytes], complaint: str) -> None:
    with pytest.raises(CodecError, match=complaint):
        Envelope.from_frames(wrong)


@pytest.mark.parametrize("limit", ["MAX_META_BYTES", "MAX_PAYLOAD_BYTES", "MAX_BUFFERS"])
def test_messages_beyond_a_limit_are_refused(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = {"MAX_META_BYTES": 3, "MAX_PAYLOAD_BYTES": 5, "MAX_BUFFERS": 2}[limit]
    monkeypatch.setattr(messages, limit, exact)
    assert Envelope.from_frames(GOOD).meta == b"abc"
    monkeypatch.setattr(messages, limit, exact - 1)
    with pytest.raises(CodecError, match=r"the limits are|expected are 1 to 2"):
        Envelope.from_frames(GOOD)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=50))
def test_a_batch_arrives_as_it_was_sent(metas: list[bytes]) -> None:
    assert messages.unpack_batch(pack_batch(metas)) == metas


MALFORMED = [
    *(b"", b"\xc0", b"\x90", b"\x91\xa1a", b"\x91\xc4\x02a", b"\x91\xc4\x01aa"),
    *(b"\xdd\xff\xff\xff\xff", b"\x91\xc6\xff\xff\xff\xff", b"\x91" * 100_000),
    pack_batch([b""] * (MAX_BATCH + 1)),
]


@pytest.mark.parametrize("raw", MALFORMED, ids=lambda raw: raw[:8].hex())
def test_malformed_batches_are_refused(raw: bytes) -> None:
    with pytest.raises(CodecError, match="batch"):
        messages.unpack_batch(raw)


BAD = object()


@pytest.mark.parametrize(
    ("encode", "named"),
    [
        (lambda: messages.encode_event("best", (1, [BAD]), {}), "args[1][0]"),
        (lambda: messages.encode_event("best", (1,), {"policy": {"net": BAD}}), "policy['net']"),
        (lambda: messages.encode_item("item", (1, "work"), {"obs": BAD}), "item['obs']"),
        (lambda: messages.encode_reply(True, [BAD]), "result[0]"),
    ],
)
def test_an_error_names_the_argument_that_cannot_be_sent(encode, named) -> None:
    with pytest.raises(CodecError, match=re.escape(f"`{named}` is an object, which cannot be")):
        encode()
