"""Tens of thousands of broken messages: each is decoded or refused, within little memory.

FUZZ_MUTANTS=10000000 in the environment tries more; each has a seed of its own, which a failure
names.
"""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest
from msgspec.msgpack import Ext

from ding_lite.errors import CodecError
from ding_lite.parallel.wire.codec import MAX_META_BYTES, decode
from ding_lite.parallel.wire.messages import HEADER_BYTES, Envelope, Kind, pack_batch
from tests.fuzz.mutation import broken_bytes, changed
from tests.parallel.golden_frames import FOLDER, MESSAGES, read_frames, read_message

NUM_MUTANTS = int(os.environ.get("FUZZ_MUTANTS", "20000"))
MIB = 2**20
KIND_AT = 5
TAGS = [Ext(code, b"") for code in range(8)]
TUPLE, SET, BYTES, _, _, TENSOR, CONTEXT, RECORD = TAGS
NASTY: list[Any] = [
    *(None, True, False, 0, 1, -1, 255, 2**31, 2**32, 2**40, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, 1.5, float("nan"), float("inf"), "", "a", "f4", "b1", "bf16", "O", "x" * 300),
    *(b"", b"\x02", b"\xff" * 9, [], [[]], [0], {}, {"a": 1}, {1: {}}, {(): 1}),
    *(*TAGS, Ext(8, b""), Ext(1, b"x"), [TUPLE], [SET, [0]], [BYTES, 0, True]),
    *([TENSOR, "f4", True, 0], [CONTEXT, True, [], {}], [RECORD, "golden.Episode", {"ret": 1.0}]),
]
KEYS: list[Any] = ["a", 1, True, None, b"", 0.5, (), (1, "a")]
Frames = list[bytes]
"""A message to break: its header, meta and buffers; `joined` is its wire form."""


@pytest.fixture(scope="module")
def golden() -> list[Frames]:
    return [split(read_frames(FOLDER / f"{name}.hex")) for name in MESSAGES]


def split(frames: list[bytes]) -> Frames:
    head, *buffers = frames
    return [head[:HEADER_BYTES], head[HEADER_BYTES:], *buffers]


def joined(frames: Frames) -> list[bytes]:
    return [b"".join(frames[:2]), *frames[2:]]


def edit_header(rng: random.Random, frames: Frames, _: list[Frames]) -> Frames:
    """Overwrite some bytes of the header, at the borders of its fields more often than not."""
    header = bytearray(frames[0])
    at = rng.choice([0, 4, 5, 6, 8, 12, 16, 24, 32, 40, 44, 48, rng.randrange(56)])
    value = rng.choice([0, 1, 2, 255, 2**16 - 1, 2**32 - 1, 2**64 - 1, rng.getrandbits(64)])
    size = min(rng.choice([1, 1, 2, 4, 8]), 56 - at)
    header[at : at + size] = struct.pack("<Q", value)[:size]
    return [bytes(header), *frames[1:]]


def move_frames(rng: random.Random, frames: Frames, golden: list[Frames]) -> Frames:
    """Drop, repeat, swap or add frames, or make one longer or shorter."""
    frames, at = list(frames), rng.randrange(len(frames))
    match rng.randrange(6):
        case 0:
            del frames[at]
        case 1:
            frames.insert(rng.randrange(len(frames) + 1), frames[at])
        case 2:
            rng.shuffle(frames)
        case 3:
            frames.insert(at, rng.choice(rng.choice(golden)))
        case 4:
            frames[at] = frames[at][: rng.randrange(len(frames[at]) + 1)]
        case _:
            frames[at] += rng.randbytes(rng.choice([1, 2, 8, 100]))
    return frames


def edit_bytes(rng: random.Random, frames: Frames, golden: list[Frames]) -> Frames:
    """Break the bytes of one frame, mostly of the meta, or put in a piece of another message."""
    at = 1 if len(frames) > 1 and frames[1] and rng.random() < 0.7 else rng.randrange(len(frames))
    broken = broken_bytes(rng, frames[at])
    if rng.random() < 0.2:
        other, start = rng.choice(golden)[1], rng.randrange(20)
        broken = broken[:start] + other[start : start + rng.choice([1, 5, 40])] + broken[start:]
    return [*frames[:at], broken, *frames[at + 1 :]]


def edit_values(rng: random.Random, frames: Frames, golden: list[Frames]) -> Frames:
    """Change the tree in the meta: what is well-formed and still wrong reaches furthest."""
    try:
        tree = msgspec.msgpack.decode(frames[1])
        if isinstance(tree, list) and tree and all(isinstance(item, bytes) for item in tree):
            at = rng.randrange(len(tree))
            tree[at] = edit_values(rng, [b"", tree[at]], golden)[1]  # an event of a batch
        else:
            for _edit in range(rng.choice([1, 1, 2, 4])):
                if isinstance(tree, list) and len(tree) == 2 and rng.random() < 0.9:
                    tree[1] = changed(rng, tree[1], NASTY, KEYS)
                else:
                    tree = changed(rng, tree, NASTY, KEYS)
        return [frames[0], msgspec.msgpack.encode(tree), *frames[2:]]
    # An int of more than 64 bits, a tree too deep to encode, and what is no msgpack: TypeError
    # before msgspec 0.22.
    except (OverflowError, RecursionError, msgspec.MsgspecError, UnicodeDecodeError, TypeError):
        return edit_bytes(rng, frames, golden)


MUTATIONS: list[Callable[[random.Random, Frames, list[Frames]], Frames]] = [
    *(edit_header, move_frames, edit_bytes, edit_bytes),
    *([edit_values] * 8),
]


def mutant(seed: int, golden: list[Frames]) -> Frames:
    """Break a golden message; half of the time its header then says the lengths that it has."""
    rng = random.Random(seed)
    frames = rng.choice([frames for frames in golden if frames[1] or rng.random() < 0.1])
    kind = Kind(frames[0][KIND_AT]) if rng.random() < 0.9 else rng.choice(list(Kind))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if len(frames) < 2:
            break
        frames = rng.choice(MUTATIONS)(rng, frames, golden)
    if len(frames) >= 2 and rng.random() < 0.7:
        buffers = tuple(memoryview(frame) for frame in frames[2:])
        repaired = Envelope(kind=kind, src=1, dst=0, meta=frames[1], buffers=buffers)
        frames = split([bytes(frame) for frame in repaired.frames()])
    return frames


@pytest.mark.deadline(120.0 + NUM_MUTANTS / 500)
@pytest.mark.parametrize(
    "num_mutants", [NUM_MUTANTS, pytest.param(10 * NUM_MUTANTS, marks=pytest.mark.slow)]
)
def test_every_broken_message_is_decoded_or_refused(golden: list[Frames], num_mutants: int) -> None:
    fates = Counter(refusal(mutant(seed, golden), seed) for seed in range(num_mutants))

    # The mutants reach every corner: some get through, and nearly every check refuses some.
    if num_mutants >= 20_000:
        assert fates[None] > num_mutants // 10
        assert len(fates) > 30, sorted(map(str, fates))


@pytest.mark.deadline(120.0 + NUM_MUTANTS / 500)
def test_no_broken_message_uses_much_memory(golden: list[Frames]) -> None:
    for frames in golden:
        read_message(joined(frames))  # what is made once and kept, as a table of torch's dtypes
    with traced():
        for seed in range(NUM_MUTANTS // 16):
            frames = mutant(seed, golden)
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            refusal(frames, seed)
            taken = tracemalloc.get_traced_memory()[1] - before
            assert taken < 2 * sum(map(len, frames)) + MIB // 4, f"seed {seed}: {taken} bytes"


def refusal(frames: Frames, seed: int) -> tuple[str, int] | None:
    """Read a message; return None, or the file and line that has refused it."""
    try:
        read_message(joined(frames))
    except CodecError as error:
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        return (last.tb_frame.f_code.co_filename, last.tb_lineno) if last else ("", 0)
    except BaseException as error:
        error.add_note(f"seed {seed}: {[frame[:200].hex() for frame in frames]}")
        raise
    return None


# Empty maps, maps in maps, lists in lists, and arrays: those that take most memory for a byte.
@pytest.mark.parametrize(
    "unit",
    [
        *(b"\x80", b"\x81\xc0" * 5 + b"\x80", b"\x81\xc0" * 500 + b"\x80", b"\x91\x90"),
        *(b"\x91\xc7\x00\x00", b"\x94\xc7\x00\x04\xa2f4\xc2\x00"),
    ],
    ids=lambda unit: unit[:9].hex(),
)
def test_decoding_a_meta_uses_at_most_120_times_its_size(unit: bytes) -> None:
    bomb = msgspec.msgpack.encode([0, [msgspec.Raw(unit)] * (MAX_META_BYTES // 16 // len(unit))])
    assert memory_of(lambda: decode(bomb, [])) < 120 * len(bomb)


def test_decoding_a_batch_uses_at_most_120_times_its_size() -> None:
    bomb = pack_batch([b""] * (MAX_META_BYTES // 2 - 5))
    envelope = Envelope(kind=Kind.EVENT, src=1, dst=0, meta=bomb)
    frames = [bytes(frame) for frame in envelope.frames()]
    assert memory_of(lambda: read_message(frames)) < 120 * MAX_META_BYTES


def memory_of(read: Callable[[], object]) -> int:
    """Return the peak memory of reading a message, or of refusing it."""
    with traced():
        with suppress(CodecError):
            read()
        return tracemalloc.get_traced_memory()[1]


@contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
