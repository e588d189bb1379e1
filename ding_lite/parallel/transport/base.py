"""The contract of a transport, which moves messages between nodes and does not read them.

A message is a list of frames, all or nothing. Between two nodes lies one link with two lanes:
`CONTROL` for what is small and urgent, `BULK` for what is large, so that a large message never
delays a small one. Each lane keeps its order, in each direction; there is none between the lanes.

A link may break and come back. Messages under way are lost then, whole, and nothing else ever
loses one; the caller must send them again. A node with a slow sink does not make the others
wait: what is sent to it waits in memory, and the caller must bound that.

A transport has one thread of its own. The sink is called there, or on a thread that pumps, one
call after the other, from `start` until `close` returns. An exception of the sink is logged, and
ends nothing but that call.

`tests/parallel/contract.py` holds every transport to every sentence of this page.
"""

from __future__ import annotations

import enum
import logging
import traceback
from collections.abc import Callable, Sequence
from typing import NewType, Protocol, TypeAlias

from ding_lite.log import Throttle

CLOSE_TIMEOUT_S = 1.0
"""Seconds for which `close` tries to send messages that were taken."""

Link = NewType("Link", bytes)
"""Names one end of a connection: where a message goes to or came from."""

Frame: TypeAlias = bytes | memoryview
"""One part of a message."""


class Lane(bytes, enum.Enum):
    """One of the two connections of a link."""

    CONTROL = b"c"
    BULK = b"b"


class Sink(Protocol):
    """The receiver of a transport's messages and notices."""

    def on_up(self, link: Link, node_id: int) -> None:
        """Note that a dialled link is up."""

    def on_message(self, link: Link, frames: list[Frame]) -> None:
        """Take a message; its frames belong to the receiver."""

    def on_down(self, link: Link) -> None:
        """Note that a dialled link has broken; it comes back by itself if it can, as the same.

        It may be called late: messages sent before may reach another process in the peer's place.
        """

    def on_doubt(self) -> None:
        """Note that a link which was dialled from elsewhere has broken; a `send` returns which.

        It may take a moment until a `send` knows; then this is called again.
        """

    def on_refused(self, node_id: int, reason: str) -> None:
        """Note that a dialled node refuses this one; it is not dialled any more."""

    def on_rejected(self, reason: str, link: Link | None = None) -> None:
        """Note that input was dropped, and the link that it came on: malformed, or of no peer."""

    def on_tick(self) -> float:
        """Send what waits; return the seconds until the next tick at the latest.

        The last call of all, when the transport is closed, is one of these.
        """


def log_failure(throttle: Throttle, error: BaseException) -> None:
    """Log the exception of a sink at a limited rate: the thread serves all peers, and goes on."""
    text = "a message could not be handled:\n%s"
    throttle.every(1.0, logging.ERROR, type(error).__name__, text, traceback.format_exc())


class Transport(Protocol):
    """Moves messages between this node and others, of which its peers may connect to it."""

    def listen(self, address: str) -> str:
        """Listen at an address, before `start`; return it with the port.

        Raises:
            ConfigError: The address is malformed, or not one to listen at.
            TransportError: It is taken.
        """

    def dial(self, node_id: int, address: str) -> None:
        """Connect to a node, now or as soon as it listens; before `start`.

        Each call makes a link of its own. It may dial any number of nodes, and listen as well.
        """

    def start(self, sink: Sink) -> None:
        """Begin to move messages."""

    def redial(self, node_id: int, address: str) -> None:
        """Connect to a node at another address than before; only within a call of the sink.

        The links that were dialled to it are closed without a notice, and a new one is made.

        Raises:
            ConfigError: The address is malformed.
        """

    def admit(self, node_id: int) -> None:
        """Accept connections of a further node from now on; safe from any thread."""

    def send(self, link: Link, lane: Lane, frames: Sequence[Frame]) -> bool:
        """Send a message; safe from any thread. Its frames must not change any more.

        It never blocks. Messages of two threads never mix, and those of one thread keep their
        order.

        Returns:
            Whether it was taken; False where the link is broken or unknown, and once the transport
            is closed.
        """

    def owner(self, link: Link) -> int | None:
        """Return the node that a link is proved to belong to; None without a proof."""

    def brought_at(self, link: Link) -> float:
        """Return when bytes were last received on a link, be their message complete or not.

        By the machine's monotonic clock, and about a second late at most; 0 where that is not
        known. Only within a call of the sink.
        """

    def forget(self, link: Link) -> None:
        """Drop the incomplete messages of a link; only within a call of the sink."""

    def drop(self, link: Link) -> None:
        """Close a link to a peer that breaks the protocol; only within a call of the sink.

        Both sinks are called as for any other break, and the link may come back.
        """

    def wake(self) -> None:
        """Call the sink's `on_tick` now; safe from any thread and at any time."""

    @property
    def is_calling(self) -> bool:
        """Whether this thread is within a call of the sink, and so must not wait for another."""

    def pump(self, ready: Callable[[], bool], seconds: float) -> None:
        """Call the sink on this thread until `ready()`, which must not wait, for a time at most.

        A thread that waits for a message gets it without a switch of threads then. It asks after
        each message and after `wake_pump`. It may return at any time, and does so at once where the
        transport cannot do it or does it already. A signal handler must not raise meanwhile: a
        message may be lost.
        """

    def wake_pump(self) -> None:
        """Make the pumping thread check `ready` again; safe from any thread and at any time."""

    def end_pump(self) -> None:
        """Make the thread that pumps return, or else the next one to do so; safe likewise."""

    def close(self) -> None:
        """Send the messages that were taken, within a second, and end the thread.

        Safe at any time and twice, but not within a call of the sink.
        """
