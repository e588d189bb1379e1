"""The messages between sessions: an envelope with kind, numbers and sizes, and a body.

A message is one frame and its buffers: a header of fixed size with the meta behind it, and the raw
bytes of arrays (`codec`). Each length is in the header as well as in the frames, and both must
agree. All that is decoded comes from outside: what is malformed raises `CodecError`.
`docs/protocol.md` is the authority on the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Annotated, Any, TypeAlias

import msgspec

from ding_lite.errors import CodecError, LabelError
from ding_lite.parallel.wire.arrays import MAX_BUFFERS, MAX_PAYLOAD_BYTES, shorten
from ding_lite.parallel.wire.codec import (
    MAX_AROUND,
    MAX_META_BYTES,
    Encoded,
    decode,
    encode,
)
from ding_lite.runtime.messaging.labels import check_labels

MAGIC = b"DING"
VERSION = 4
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
            len(self.buffers), len(self.meta), self.payload_bytes if self.buffers else 0,
        )  # fmt: skip
        return [header + self.meta, *self.buffers]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes | memoryview]) -> Envelope:
        """Read a message, or raise CodecError; its buffers are the frames, not copies."""
        if not 1 <= len(frames) <= 1 + MAX_BUFFERS:
            raise CodecError(
                f"A message has {len(frames)} frames; expected are 1 to {1 + MAX_BUFFERS}."
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
        if meta_bytes > MAX_META_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
            raise CodecError(
                f"A message has {meta_bytes} bytes of meta and {payload_bytes} of payload; the "
                f"limits are {MAX_META_BYTES} and {MAX_PAYLOAD_BYTES}."
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


pack_batch: Callable[[Sequence[bytes]], bytes] = _ENCODER.encode


def unpack_batch(meta: bytes, buffers: Sequence[memoryview] = ()) -> list[bytes]:
    """Return the metas of the events of a message, of which a single one may have buffers."""
    try:
        metas = _DECODER.decode(meta)
    except msgspec.MsgspecError as error:
        raise CodecError(f"A batch of events is malformed: {error}") from error
    if not 1 <= len(metas) <= MAX_BATCH:
        raise CodecError(f"A batch has {len(metas)} events; expected are 1 to {MAX_BATCH}.")
    if len(metas) > 1 and buffers:
        raise CodecError("A batch of events has no buffers; an event with buffers stands alone.")
    return metas


ITEM = "ding_lite.item"
"""The call that sends an item of a stream."""
WITHDRAW = "ding_lite.withdraw"
"""The call that withdraws items."""
_BATCH_ROOM = 16
"""Bytes of a meta that are left for a batch around an event."""
_HOP_ROOM = 1024
"""Bytes of a meta that are left for a batch, and for hubs, around an event, call or answer."""


@dataclass(frozen=True)
class Identity:
    """The identity of a node, from its greeting."""

    node_id: int
    incarnation: int
    """Counts the starts of the node."""
    num_nodes: int
    """How many nodes the job has; 0 from one that joins a running job and does not know yet."""
    labels: frozenset[str]
    memory: str = ""
    """The memory it can share over this link: two with the same name can; "" for none."""
    job: str = ""
    """The name of its job; "" without one, or where it joins a running job."""


class Joined(msgspec.Struct, frozen=True):
    """The peer has greeted: for the first time, or again after a broken link."""

    peer: Identity
    is_new_incarnation: bool


class Left(msgspec.Struct, frozen=True):
    """The peer has said good-bye."""


class EventArrived(msgspec.Struct, frozen=True):
    """The peer has emitted an event."""

    event: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    number: int = 0  # counted by the peer


class StateArrived(msgspec.Struct, frozen=True):
    """The peer has published values, by topic."""

    values: dict[str, Any]
    owes_credit: int = 0
    """The number of the message if values in it are only announced: see `Session.credit`."""
    number: int = 0


class CallArrived(msgspec.Struct, frozen=True):
    """The peer calls a handler of this node."""

    number: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class ReplyArrived(msgspec.Struct, frozen=True):
    """The peer has answered a call of this node."""

    number: int
    ok: bool
    value: Any


class Dropped(msgspec.Struct, frozen=True):
    """A message of the peer was dropped."""

    reason: str
    is_fault: bool = True
    """Whether it breaks the protocol."""


Arrival: TypeAlias = (
    Joined | Left | EventArrived | StateArrived | CallArrived | ReplyArrived | Dropped
)


def encode_event(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, by_hub: bool = False
) -> Encoded:
    """Encode an event, once for any number of peers, or a call; a hub puts others into its own."""
    if type(name) is not str or not name:
        raise CodecError(f"Events and calls have a non-empty str for a name, not {shorten(name)}.")
    return _encode(
        [name, kwargs or None, *args],
        lambda: {f"args[{index}]": value for index, value in enumerate(args)} | kwargs,
        by_hub=by_hub,
    )


encode_call = encode_event


def encode_item(name: str, head: tuple[Any, ...], item: Any) -> Encoded:
    return _encode([name, None, *head, item], lambda: {"item": item})


def encode_reply(ok: bool, value: Any, *, by_hub: bool = False) -> Encoded:
    return _encode([ok, value], lambda: {"result": value}, by_hub=by_hub)


def _encode(
    tree: list[Any], parts: Callable[[], dict[str, Any]], *, by_hub: bool = False
) -> Encoded:
    """Encode a message; errors name the part of the user instead of its place in the message.

    What a hub adds has room in the message of every sender, so a hub can relay all that it gets.
    """
    room = _BATCH_ROOM if by_hub else _HOP_ROOM
    try:
        return encode(tree, room=room, around=MAX_AROUND if by_hub else 1)
    except CodecError as error:
        refusal = error
    for name, part in parts().items():
        encode(part, name=name, room=room)
    raise refusal


def read_call(envelope: Envelope) -> CallArrived:
    body = decode(envelope.meta, envelope.buffers)
    return CallArrived(envelope.seq, *read_named(body, "A call"))


def read_named(body: Any, what: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    if type(body) is list and len(body) >= 2 and type(body[0]) is str:
        name, kwargs, *args = body
        if kwargs is None:
            return name, tuple(args), {}
        if type(kwargs) is dict and {str}.issuperset(map(type, kwargs)):
            return name, tuple(args), kwargs
    raise CodecError(f"{what} is a name, a dict of named arguments or None, and the others.")


def read_reply(envelope: Envelope) -> ReplyArrived:
    match decode(envelope.meta, envelope.buffers):
        case [bool(ok), value]:
            return ReplyArrived(envelope.seq, ok, value)
    raise CodecError("An answer says whether it is one, and then what it is.")


MAX_NUMBER = 2**62
"""Limit of event numbers in a greeting: 146,000 years at a million events a second."""
MAX_NODES = 2**20
"""Limit of the nodes of a job, in a greeting."""
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]


class Greeting(msgspec.Struct, frozen=True):
    """The body of a HELLO or WELCOME; docs/protocol.md says what the fields mean."""

    num_nodes: Annotated[int, msgspec.Meta(ge=0, le=MAX_NODES)]
    labels: Annotated[list[_Text], msgspec.Meta(max_length=1024)]
    first_kept: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
    seen_epoch: Annotated[int, msgspec.Meta(ge=0)]
    seen: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
    memory: _Text = ""
    job: _Text = ""


def read_greeting(envelope: Envelope) -> Greeting:
    body = decode(envelope.meta, envelope.buffers)
    try:  # a tensor would be taken for a mapping
        greeting = msgspec.convert(body if type(body) is dict else None, Greeting)
        check_labels(greeting.labels)
    except (msgspec.ValidationError, LabelError) as error:
        raise CodecError(
            f"Node {envelope.src} greets in a way that this version does not understand: {error}"
        ) from error
    return greeting
