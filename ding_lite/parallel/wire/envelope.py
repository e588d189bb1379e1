"""The envelope of every message: kind, sender, receiver, numbers and sizes.

A message is one frame and its buffers: a header of fixed size with the meta behind it, and the raw
bytes of arrays (`codec`). Each length is in the header as well as in the frames, and both must
agree. `docs/protocol.md` is the authority on the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

import msgspec

from ding_lite.errors import CodecError
from ding_lite.parallel.wire.arrays import MAX_BUFFERS, MAX_PAYLOAD_BYTES
from ding_lite.parallel.wire.codec import MAX_META_BYTES

MAGIC = b"DING"
VERSION = 3
"""The version of docs/protocol.md. A change of the bytes changes it, a new release does not."""
MAX_BATCH = 4096
"""Events in one message."""

_HEADER = Struct("<4sBBHIIQQQIIQ")
HEADER_BYTES = _HEADER.size
_PREFIX_BYTES = len(MAGIC) + 1


class Kind(IntEnum):
    """The kinds of messages; docs/protocol.md says what each of them holds."""

    HELLO = 1
    WELCOME = 2
    REFUSE = 3
    EVENT = 4
    STATE = 5
    CREDIT = 7
    CALL = 8
    REPLY = 9
    ACK = 10
    PING = 11
    BYE = 12


_KINDS = {int(kind): kind for kind in Kind}


@dataclass(frozen=True)
class Limits:
    """Limits of a message, checked before memory is taken for it."""

    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    """All buffers of a message together."""
    max_meta_bytes: int = MAX_META_BYTES
    max_buffers: int = MAX_BUFFERS


LIMITS = Limits()


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """One message between two nodes."""

    kind: Kind
    src: int
    dst: int
    incarnation: int = 0  # of the sender: higher after each restart
    seq: int = 0
    """The number of the message, or of the first event in it, in the sender's count."""
    ack: int = 0
    """The number of the receiver's last event that the sender has."""
    meta: bytes = b""
    buffers: tuple[memoryview, ...] = ()

    @property
    def payload_bytes(self) -> int:
        return sum([buffer.nbytes for buffer in self.buffers]) if self.buffers else 0

    def frames(self) -> list[bytes | memoryview]:
        header = _HEADER.pack(
            MAGIC, VERSION, self.kind, 0, self.src, self.dst, self.incarnation, self.seq, self.ack,
            len(self.buffers), len(self.meta), self.payload_bytes,
        )  # fmt: skip
        return [header + self.meta, *self.buffers]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes | memoryview], limits: Limits = LIMITS) -> Envelope:
        """Read a message; its buffers are the frames themselves, not copies.

        Raises:
            CodecError: The frames are no message of this version, or beyond a limit.
        """
        if not 1 <= len(frames) <= 1 + limits.max_buffers:
            raise CodecError(
                f"A message has {len(frames)} frames; expected are 1 to {1 + limits.max_buffers}."
            )
        head, *rest = frames
        if len(head) < HEADER_BYTES:
            raise CodecError(f"A header has {len(head)} bytes instead of {HEADER_BYTES}.")
        (
            magic, version, kind_code, flags, src, dst, incarnation, seq, ack,
            num_buffers, meta_bytes, payload_bytes,
        ) = _HEADER.unpack_from(head)  # fmt: skip
        if magic != MAGIC:
            raise CodecError(f"A message begins with {magic!r} instead of {MAGIC!r}.")
        if version != VERSION:
            raise CodecError(
                f"A message is of version {version} of the protocol; this node speaks {VERSION}. "
                f"Run the same ding_lite on all nodes."
            )
        kind = _KINDS.get(kind_code)
        if kind is None or flags:
            raise CodecError(f"A message is of kind {kind_code} with flags {flags:#x}: unknown.")

        buffers = tuple([memoryview(frame) for frame in rest]) if rest else ()
        nbytes = sum([buffer.nbytes for buffer in buffers]) if rest else 0
        found = len(buffers), len(head) - HEADER_BYTES, nbytes
        if found != (num_buffers, meta_bytes, payload_bytes):
            raise CodecError(
                f"Buffers, meta bytes and payload bytes are {found}; the header says "
                f"{(num_buffers, meta_bytes, payload_bytes)}."
            )
        if meta_bytes > limits.max_meta_bytes or payload_bytes > limits.max_payload_bytes:
            raise CodecError(
                f"A message has {meta_bytes} bytes of meta and {payload_bytes} of payload; the "
                f"limits are {limits.max_meta_bytes} and {limits.max_payload_bytes}."
            )
        return cls(
            kind=kind, src=src, dst=dst, incarnation=incarnation, seq=seq, ack=ack,
            meta=bytes(head[HEADER_BYTES:]), buffers=buffers,
        )  # fmt: skip


def version_of(frames: Sequence[bytes | memoryview]) -> int | None:
    """Return the protocol version of a message, known or not; None if it is no message."""
    head = bytes(frames[0][:_PREFIX_BYTES]) if frames else b""
    return head[-1] if len(head) == _PREFIX_BYTES and head.startswith(MAGIC) else None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[bytes])


def pack_batch(metas: Sequence[bytes]) -> bytes:
    return _ENCODER.encode(metas)


def unpack_batch(meta: bytes) -> list[bytes]:
    try:
        metas = _DECODER.decode(meta)
    except msgspec.MsgspecError as error:
        raise CodecError(f"A batch of events is malformed: {error}") from error
    if not 1 <= len(metas) <= MAX_BATCH:
        raise CodecError(f"A batch has {len(metas)} events; expected are 1 to {MAX_BATCH}.")
    return metas
