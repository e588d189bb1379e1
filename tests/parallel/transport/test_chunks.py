"""Large messages in chunks: assembled or dropped, and checked."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import CodecError
from ding_lite.parallel.transport import chunks
from ding_lite.parallel.transport.base import Frame, Lane, Link
from ding_lite.parallel.transport.chunks import Assembler, is_chunk, split

LINK, OTHER = Link(b"one"), Link(b"other")
BULK = Lane.BULK


def message(*sizes: int) -> list[Frame]:
    return [bytes((number + k) % 251 for k in range(size)) for number, size in enumerate(sizes)]


def chunks_of(frames: list[Frame], stream: int = 1) -> list[list[Frame]]:
    return [list(map(bytes, chunk)) for chunk in split(frames, stream)]


def assemble(assembler: Assembler, parts: list[list[Frame]]) -> list[Frame] | None:
    for part in parts[:-1]:
        assert is_chunk(part)
        assert assembler.take(LINK, BULK, part) is None
    return assembler.take(LINK, BULK, parts[-1])


def same(found: list[Frame] | None, expected: list[Frame]) -> bool:
    return found is not None and list(map(bytes, found)) == list(map(bytes, expected))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of ten bytes, of three pieces at most."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 10)
    monkeypatch.setattr(chunks, "MAX_PIECES", 3)


@given(sizes=st.lists(st.integers(0, 35), min_size=1, max_size=12))
def test_a_split_message_is_assembled_again(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", 10)
        patch.setattr(chunks, "MAX_PIECES", 3)
        frames = message(*sizes)
        parts = chunks_of(frames)
        assert all(sum(map(len, part[1:])) <= 10 and len(part) <= 4 for part in parts[1:])
        assembler = Assembler(max_under_way=1)
        assert same(assemble(assembler, parts), frames)
        assert len(assembler) == 0


def test_splitting_copies_nothing() -> None:
    block = np.zeros(3 * chunks.CHUNK_BYTES, np.uint8)
    pieces = [piece for part in list(split([block.data], 1))[1:] for piece in part[1:]]
    block[:] = 7
    assert all(bytes(piece[:1]) == b"\7" for piece in pieces)


@pytest.mark.usefixtures("small")
def test_links_and_lanes_do_not_mix() -> None:
    assembler = Assembler(max_under_way=3)
    places = [(LINK, BULK), (LINK, Lane.CONTROL), (OTHER, BULK)]
    messages = [message(25 + k) for k in range(3)]
    for turn in zip(*[chunks_of(frames) for frames in messages], strict=True):
        found = [assembler.take(*place, part) for place, part in zip(places, turn, strict=True)]
    assert all(same(one, frames) for one, frames in zip(found, messages, strict=True))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("fault", ["unknown", "other stream", "twice", "skipped", "count", "long"])
def test_a_chunk_that_does_not_fit_ends_its_message(fault: str) -> None:
    parts = chunks_of(message(35))
    assembler = Assembler(max_under_way=1)
    if fault != "unknown":
        assembler.take(LINK, BULK, parts[0])
        assembler.take(LINK, BULK, parts[1])
    wrong = {
        "unknown": parts[1],
        "other stream": chunks_of(message(35), stream=2)[2],
        "twice": parts[1],
        "skipped": parts[3],
        "count": [*parts[2], b"more"],
        "long": [parts[2][0], bytes(99)],
    }[fault]
    with pytest.raises(CodecError):
        assembler.take(LINK, BULK, wrong)
    with pytest.raises(CodecError, match="no message that was announced"):
        assembler.take(LINK, BULK, parts[2])
    assert same(assemble(assembler, parts), message(35))


def begin(num_frames: int, total: int, *sizes: int, head: Any = (1, 1, 0)) -> list[Frame]:
    start = struct.pack("<4sBBHIQQ", b"DCHK", *head, num_frames, 9, total)
    return [start, struct.pack(f"<{len(sizes)}Q", *sizes)]


@pytest.mark.parametrize(
    "announced",
    [
        begin(1, 2**62, 2**62),
        begin(2, 2**20, 2**63, 2**63 + 2**20),
        begin(0, 0),
        begin(1025, 1025, *[1] * 1025),
        begin(2, 10, 10),
        begin(1, 11, 10),
        [*begin(1, 10, 10), b"more"],
        *(begin(1, 10, 10, head=head) for head in ((2, 1, 0), (1, 3, 0), (1, 1, 1))),
    ],
)
def test_an_announcement_beyond_the_limits_takes_no_memory(announced: list[Frame]) -> None:
    assembler = Assembler(max_under_way=1)
    with pytest.raises(CodecError):
        assembler.take(LINK, BULK, announced)
    assert len(assembler) == 0


def test_the_oldest_incomplete_message_is_given_up_for_a_new_one() -> None:
    assembler = Assembler(max_under_way=2)
    for number in range(100):
        assembler.take(Link(b"%d" % number), BULK, begin(1, 2**30, 2**30))
    assert len(assembler) == 2


@pytest.mark.usefixtures("small")
def test_a_node_with_many_links_cannot_displace_the_messages_of_others() -> None:
    assembler = Assembler(max_under_way=4)
    first, *rest = chunks_of(message(35))
    assembler.take(LINK, BULK, first, owner=1)
    for number in range(100):
        assembler.take(Link(b"%d" % number), BULK, first, owner=2)
    assert len(assembler) == 3
    (*_, whole) = (assembler.take(LINK, BULK, part, owner=1) for part in rest)
    assert same(whole, message(35))


@pytest.mark.usefixtures("small")
def test_a_link_that_begins_anew_or_is_forgotten_leaves_nothing() -> None:
    assembler = Assembler(max_under_way=5)
    assembler.take(LINK, BULK, chunks_of(message(35))[0])
    assert same(assemble(assembler, chunks_of(message(50), stream=2)), message(50))
    assembler.take(LINK, BULK, chunks_of(message(35))[0])
    assembler.forget(LINK)
    assert len(assembler) == 0
