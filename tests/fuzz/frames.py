"""Frames that this package reads, each with a way to break one and to read it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ding_lite.distributed.accelerate.processes import _unpack
from ding_lite.parallel.transport.base import Lane, Link
from ding_lite.parallel.transport.chunks import Assembler, is_chunk, split
from ding_lite.parallel.wire.codec import decode, decode_items
from ding_lite.parallel.wire.messages import (
    Envelope,
    Kind,
    read_call,
    read_greeting,
    read_named,
    read_reply,
    unpack_batch,
)
from tests.fuzz.files import Attempt, UnreadError
from tests.fuzz.mutation import broken_bytes
from tests.parallel.golden_frames import FOLDER, MESSAGES, read_frames
from tests.parallel.test_wire_fuzz import joined, mutant, split as parted

READERS: dict[Kind, Any] = {Kind.CALL: read_call, Kind.REPLY: read_reply}
GREETINGS = (Kind.HELLO, Kind.WELCOME)


def messages(_folder: Path) -> Iterator[Attempt]:
    """Break a message between nodes, and read it as what its header says that it is."""
    golden = [parted(read_frames(FOLDER / f"{name}.hex")) for name in MESSAGES]

    def attempt(rng: random.Random) -> object:
        frames = joined(mutant(rng.getrandbits(48), golden))
        envelope = Envelope.from_frames(frames)
        if envelope.kind is Kind.EVENT:
            metas = unpack_batch(envelope.meta, envelope.buffers)
            return [read_named(decode(meta, envelope.buffers), "An event") for meta in metas]
        if envelope.kind is Kind.STATE:
            return decode_items(envelope.meta, envelope.buffers)
        if envelope.kind in GREETINGS:
            return read_greeting(envelope)
        if envelope.kind in READERS:
            return READERS[envelope.kind](envelope)
        return decode(envelope.meta, envelope.buffers) if envelope.meta else None

    yield attempt


def chunks(_folder: Path) -> Iterator[Attempt]:
    message = [b"h" * 56, b"meta", np.arange(500.0).tobytes(), b""]
    parts = [list(map(bytes, part)) for part in split(message, 1)]

    def attempt(rng: random.Random) -> object:
        assembler = Assembler(max_under_way=2, max_bytes=1 << 20)
        came = [list(part) for part in parts]
        at = rng.randrange(len(came))
        match rng.randrange(6):
            case 0:
                del came[at]
            case 1:
                came.insert(at, came[rng.randrange(len(came))])
            case _:
                piece = rng.randrange(len(came[at]))
                came[at][piece] = broken_bytes(rng, came[at][piece])
        whole = None
        for part in came:
            if not is_chunk(part):
                raise UnreadError
            whole = assembler.take(Link(b"fuzz"), Lane.BULK, part)
        return whole

    yield attempt


def broadcasts(_folder: Path) -> Iterator[Attempt]:
    """Break what the processes of Accelerate tell each other."""
    from ding_lite.distributed.accelerate.processes import _pack
    from ding_lite.parallel.wire.codec import encode

    value = encode({"a": np.arange(600.0), "b": [1, "x"], "c": torch.ones(2)})
    whole = _pack(value).numpy().tobytes()

    def attempt(rng: random.Random) -> object:
        content = bytearray(broken_bytes(rng, whole)) or bytearray(1)
        return _unpack(torch.frombuffer(content, dtype=torch.uint8))

    yield attempt
