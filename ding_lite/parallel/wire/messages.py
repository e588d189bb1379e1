"""Encode and decode the bodies of messages between sessions.

All that is decoded comes from outside: a malformed body raises `CodecError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from ding_lite.errors import CodecError, LabelError
from ding_lite.parallel.memory.segments import Published
from ding_lite.parallel.wire.arrays import shorten
from ding_lite.parallel.wire.codec import Encoded, decode, encode
from ding_lite.parallel.wire.envelope import Envelope, unpack_batch
from ding_lite.runtime.messaging.labels import check_labels

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


def encode_event(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Encoded:
    """Encode an event, once for any number of peers, or a call.

    Raises:
        CodecError: An argument cannot be sent.
    """
    if type(name) is not str:
        raise CodecError(f"Events and calls have a str for a name, not {shorten(name)}.")
    return encode([name, kwargs or None, *args], room=_HOP_ROOM)


encode_call = encode_event


def encode_reply(ok: bool, value: Any) -> Encoded:
    return encode([ok, value], room=_HOP_ROOM)


def write_state(values: Mapping[str, Any], *, shares_memory: bool = False) -> Encoded:
    """Encode slots as one body; a peer that shares this node's memory gets announcements."""
    slots = dict(values)
    for key, value in values.items():
        if isinstance(value, Published):
            slots[key] = value.announcement if shares_memory else value.encoded
    return encode(slots, name="state")


def read_state(envelope: Envelope) -> dict[str, Any]:
    values = decode(envelope.meta, envelope.buffers)
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise CodecError("A state message is a dict of values by topic.")
    return values


def read_events(envelope: Envelope) -> list[tuple[bytes, list[memoryview]]]:
    metas = unpack_batch(envelope.meta)
    if len(metas) > 1 and envelope.buffers:
        raise CodecError("A batch of events has no buffers; an event with buffers stands alone.")
    return [(meta, list(envelope.buffers)) for meta in metas]


def read_event(body: Any, number: int) -> EventArrived:
    return EventArrived(*read_named(body, "An event"), number)


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
_NUMBERS = {
    "num_nodes": (0, MAX_NODES),
    "first_kept": (1, MAX_NUMBER),
    "seen_epoch": (0, 2**64 - 1),
    "seen": (0, MAX_NUMBER),
}
_MOST_LABELS = 1024
_LONGEST_TEXT = 1024


def read_greeting(body: Any, node_id: int) -> dict[str, Any]:
    labels = body.get("labels") if isinstance(body, dict) else None
    if type(labels) is not list or not (
        all(type(body.get(key)) is int for key in _NUMBERS)
        and all(
            type(text) is str and len(text) <= _LONGEST_TEXT
            for text in [body.get("memory", ""), body.get("job", ""), *labels]
        )
    ):
        raise CodecError(f"Node {node_id} greets in a way that this version does not understand.")
    for key, (least, most) in _NUMBERS.items():
        if not least <= body[key] <= most:
            raise CodecError(
                f"Node {node_id} greets with `{key}` {body[key]}; possible are {least} to {most}."
            )
    if len(labels) > _MOST_LABELS:
        raise CodecError(
            f"Node {node_id} greets with {len(labels)} labels; the limit is {_MOST_LABELS}."
        )
    try:
        check_labels(labels)
    except LabelError as error:
        raise CodecError(f"Node {node_id} greets with a wrong label: {error}") from error
    return dict(body)
