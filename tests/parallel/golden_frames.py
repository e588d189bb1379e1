"""Messages and their bytes: what every version 4 of the protocol sends, to the last bit.

The bytes stand in golden/v4/<name>.hex, one line for each frame; `00 * 16384` is that many
zeros. A change of them is a change of the protocol, which needs a new version, a new folder and
a new docs/protocol.md. `python -m tests.parallel.golden_frames` writes what is not there yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ding_lite.parallel.wire.codec import Encoded, decode, encode
from ding_lite.parallel.wire.messages import Envelope, Kind, pack_batch, unpack_batch
from ding_lite.records import register
from ding_lite.runtime.context import Context

FOLDER = Path(__file__).parent / "golden" / "v4"


@register(name="golden.Episode")
@dataclass
class Episode:
    ret: float
    length: int


def greeting() -> Any:
    place = {"num_nodes": 2, "labels": ["collector", "node.1"]}
    return {**place, "first_kept": 17, "seen_epoch": 1, "seen": 5}


def scalars() -> Any:
    """Return one value of each kind that msgpack encodes natively."""
    return {"ctx/scalars": [None, True, -1, 2**63, 0.5, "\u03b5-greedy", b"\x00\xff"]}


def containers() -> Any:
    ctx = Context(env_step=7, total_step=3)
    ctx.keep("env_step")
    return {
        "ctx/list": [1, [2]],
        "ctx/tuple": (),
        "ctx/dict": {"a": {}, 1: None},
        "ctx/set": {5},
        "ctx/ctx": ctx,
        "ctx/record": Episode(487.5, 500),
    }


def arrays() -> Any:
    """Return small arrays, which share a buffer, and similar values."""
    return {
        "ctx/scalar": np.float32(0.5),
        "ctx/none": np.empty((0, 3), np.float32),
        "ctx/point": np.array(-1, np.int64),
        "ctx/rows": np.array([[1, 2], [3, 4]], np.uint8),
        "ctx/flags": np.array([True, False]),
        "ctx/bf16": torch.tensor([1.0, -2.0], dtype=torch.bfloat16),
        "ctx/complex": torch.tensor([1 - 2j], dtype=torch.complex64),
    }


def weights() -> Any:
    return {"bias": torch.tensor([0.5, -0.5]), "weight": torch.zeros(2, 2048)}


def large() -> Any:
    return {"model/actor": weights(), "raw": bytes(16384)}


def message(kind: Kind, body: Encoded | None = None, *, seq: int = 0) -> Envelope:
    """Make an envelope from node 1, in its second incarnation, to node 0."""
    meta, buffers = (body.meta, tuple(body.buffers)) if body is not None else (b"", ())
    numbers = {"src": 1, "dst": 0, "incarnation": 2, "seq": seq, "ack": 5}
    return Envelope(kind=kind, meta=meta, buffers=buffers, **numbers)


def events(*bodies: Any) -> Envelope:
    """Make a message of events, from number 17 on."""
    encoded = [encode(body) for body in bodies]
    batch = pack_batch([one.meta for one in encoded])
    return message(Kind.EVENT, Encoded(batch, encoded[0].buffers), seq=17)


EVENTS = [["evaluated", {"version": 3}, 487.5], ["stop", None]]
CALL = ["sample", None, 32]
FOUND = ["found", None, np.array([3, 1], np.int32)]
MESSAGES: dict[str, tuple[Callable[[], Envelope], Callable[[], Any]]] = {
    "hello": (lambda: message(Kind.HELLO, encode(greeting())), greeting),
    "welcome": (lambda: message(Kind.WELCOME, encode(greeting())), greeting),
    "refuse": (lambda: message(Kind.REFUSE, encode(greeting())), greeting),
    "event": (lambda: events(*EVENTS), lambda: EVENTS),
    "event_with_array": (lambda: events(FOUND), lambda: [FOUND]),
    "state_scalars": (lambda: message(Kind.STATE, encode(scalars()), seq=7), scalars),
    "state_containers": (lambda: message(Kind.STATE, encode(containers()), seq=8), containers),
    "state_small": (lambda: message(Kind.STATE, encode(arrays()), seq=9), arrays),
    "state_large": (
        lambda: message(Kind.STATE, encode({**large(), "model/actor": encode(weights())}), seq=10),
        large,
    ),
    "credit": (lambda: message(Kind.CREDIT, seq=9), lambda: None),
    "call": (lambda: message(Kind.CALL, encode(CALL), seq=4), lambda: CALL),
    "reply": (lambda: message(Kind.REPLY, encode([True, None]), seq=4), lambda: [True, None]),
    "ack": (lambda: message(Kind.ACK), lambda: None),
    "ping": (lambda: message(Kind.PING), lambda: None),
    "bye": (lambda: message(Kind.BYE), lambda: None),
}
"""By name: the envelope, and the values it carries."""


def read_message(frames: list[bytes]) -> Any:
    """Read a message as a node does: its envelope, then all values in it."""
    envelope = Envelope.from_frames(frames)
    if envelope.kind is Kind.EVENT:
        return [decode(meta, envelope.buffers) for meta in unpack_batch(envelope.meta)]
    return decode(envelope.meta, envelope.buffers) if envelope.meta else None


def read_frames(path: Path) -> list[bytes]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [_bytes_of(line) for line in lines]


def write_frames(frames: list[bytes]) -> str:
    return "".join(f"{_line_of(frame)}\n" for frame in frames)


def _bytes_of(line: str) -> bytes:
    if zeros := re.fullmatch(r"00 \* (\d+)", line):
        return bytes(int(zeros[1]))
    return bytes.fromhex(line)


def _line_of(frame: bytes) -> str:
    return frame.hex() if any(frame) or not frame else f"00 * {len(frame)}"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (make, _) in MESSAGES.items():
        path = FOLDER / f"{name}.hex"
        if not path.exists():
            path.write_text(write_frames([bytes(frame) for frame in make().frames()]))
