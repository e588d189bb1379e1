"""The cost of encoding and decoding a message, beside pickle and a bare copy."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import torch

from ding_lite.parallel.wire.codec import decode, encode
from ding_lite.parallel.wire.messages import Envelope, Kind, pack_batch, unpack_batch
from tests.bench.harness import Row, compare

NUM_TENSORS = 20
BATCH = 100
EVENT = ["evaluated", ["policy-7", 487.5, 12], {"version": 3, "note": "x" * 40, "step": 120_394}]


def run() -> list[Row]:
    torch.set_num_threads(1)
    rows = events()
    for name, nbytes, number in (
        ("10 KB", 10_000, 200),
        ("1 MB", 10**6, 100),
        ("100 MB", 10**8, 2),
    ):
        rows += state(name, nbytes, number=number)
    return rows


def events() -> list[Row]:
    """Encode and decode an event of 100 bytes: alone, and in a batch with its envelope."""
    encoded = encode(EVENT)
    pickled = pickle.dumps(EVENT, protocol=5)
    frames = write_batch()
    name = f"event of {len(encoded.meta)} B"
    one = partial(compare, baseline_name="pickle 5", number=1_000)
    several = partial(one, number=20, per=BATCH, tracked=True)
    return [
        one(f"{name}: encode", lambda: encode(EVENT), lambda: pickle.dumps(EVENT, protocol=5)),
        one(
            f"{name}: decode",
            lambda: decode(encoded.meta, encoded.buffers),
            lambda: pickle.loads(pickled),
        ),
        several(
            f"{name}, {BATCH} in a message: encode, batch, envelope",
            write_batch,
            lambda: [pickle.dumps(EVENT, protocol=5) for _ in range(BATCH)],
        ),
        several(
            f"{name}, {BATCH} in a message: envelope, batch, decode",
            lambda: read_batch(frames),
            lambda: [pickle.loads(pickled) for _ in range(BATCH)],
        ),
    ]


def write_batch() -> list[bytes | memoryview]:
    meta = pack_batch([encode(EVENT).meta for _ in range(BATCH)])
    return Envelope(kind=Kind.EVENT, src=1, dst=0, meta=meta).frames()


def read_batch(frames: list[bytes | memoryview]) -> list[Any]:
    return [decode(meta, []) for meta in unpack_batch(Envelope.from_frames(frames).meta)]


def state(name: str, nbytes: int, *, number: int) -> list[Row]:
    """Encode and decode a state dict of 20 tensors; the baselines do the same work."""
    shape = (nbytes // 4 // NUM_TENSORS // 10, 10)
    weights = {f"layers.{i}.weight": torch.randn(shape) for i in range(NUM_TENSORS)}
    encoded = encode(weights)
    arrived = [memoryview(bytearray(buffer)) for buffer in encoded.buffers]
    pickled = pickle.dumps(weights, protocol=5)
    source = np.frombuffer(b"".join(encoded.buffers), np.uint8)
    target = np.empty_like(source)

    def copy() -> None:
        np.copyto(target, source)

    of = f"state dict, 20 tensors, {name}"
    beside_copy = partial(compare, baseline_name="warm memcpy", number=number)
    beside_pickle = partial(
        compare, baseline_name="pickle 5", number=number, target=1.0, tracked=nbytes == 10**6
    )
    return [
        beside_pickle(
            f"{of}: encode", lambda: encode(weights), lambda: pickle.dumps(weights, protocol=5)
        ),
        beside_pickle(
            f"{of}: decode", lambda: decode(encoded.meta, arrived), lambda: pickle.loads(pickled)
        ),
        beside_copy(f"{of}: encode beside a copy", lambda: encode(weights), copy),
        beside_copy(
            f"{of}: encode, borrowed, beside a copy", lambda: encode(weights, borrow=True), copy
        ),
    ]
