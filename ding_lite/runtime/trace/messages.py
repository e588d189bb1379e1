"""Trace the messages of a node as arrows of a time line.

A message is an arrow: it begins in the slice of its sender, may pass the slice of the thread
that reads it, and ends in the slice of its receiver. Both ends derive the same key of the arrow
from the message itself, so nothing is sent for a trace. Without a tracer all of this costs an
`is None`.
"""

from __future__ import annotations

from hashlib import blake2b
from time import monotonic_ns
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias

Turn: TypeAlias = Literal["s", "t", "f"]
"""The role of a slice for an arrow: start, step or finish."""


class Slice(NamedTuple):
    """A period of a thread, in nanoseconds of the machine's monotonic clock."""

    thread: int
    began_ns: int
    ended_ns: int


class Tracer(Protocol):
    """Draws slices and arrows into a time line."""

    def slice(self, name: str, began_ns: int) -> Slice:
        """Draw the work of this thread from then until now."""
        ...

    def arrow(self, turn: Turn, kind: str, key: str, where: Slice, at_ns: int) -> None:
        """Draw the start, a step or the end of an arrow, within a slice that has been drawn.

        `kind` is `event`, `ctx`, `item`, `call` or `answer`; both ends of an arrow, and no other of
        its kind, have the same `key`.
        """
        ...


def arrow_key(*parts: object) -> str:
    """Make the key of an arrow: a number of 64 bits, as the format requires."""
    return f"0x{blake2b(repr(parts).encode(), digest_size=8).hexdigest()}"


class TracedEvent(str):
    """The name of an event from another node, and its arrow.

    It is a str for the code that passes it on; the listener draws the end of the arrow.
    """

    tracer: Tracer
    key: str

    def __new__(cls, event: str, tracer: Tracer, key: str) -> Self:
        name = super().__new__(cls, event)
        name.tracer, name.key = tracer, key
        return name


def draw_listener(event: str, began_ns: int) -> None:
    """Draw the run of a listener of an event since then, and the event's arrow if it has one."""
    if isinstance(event, TracedEvent):
        where = event.tracer.slice(f"on {event}", began_ns)
        event.tracer.arrow("f", "event", event.key, where, began_ns)


def draw_wait(event: str, began_ns: int) -> None:
    """Draw a wait for an event since then, and the event's arrow if it has one.

    The arrow ends in a separate slice: a slice that began before the arrow would reverse it.
    """
    if isinstance(event, TracedEvent):
        event.tracer.slice(f"wait_for {event}", began_ns)
        now = monotonic_ns()
        event.tracer.arrow("f", "event", event.key, event.tracer.slice(f"{event}", now), now)


class Traced:
    """The tracer of a node's messages, if there is one.

    `began_ns` is when its job began, on the machine's monotonic clock; None for a single node.
    """

    def __init__(self, began_ns: int | None = None) -> None:
        self.tracer: Tracer | None = None
        """Draws the time line; None while messages are not traced."""
        self.began_ns = began_ns

    def item_sent(self, stream: str, began_ns: int, number: int, at_ns: int) -> None:
        """Draw an item of a stream, which may have waited for room."""

    def now(self) -> int:
        """Return the current time, at which a slice begins; 0 while messages are not traced."""
        return 0 if self.tracer is None else monotonic_ns()
