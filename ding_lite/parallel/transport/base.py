"""The contract of a transport, which moves messages between nodes and does not read them.

A message is a list of frames, all or nothing. Between two nodes lies one link with two lanes:
`CONTROL` for small and urgent messages, `BULK` for large ones, so that a large message never
delays a small one. Each lane keeps the order of its messages in each direction; between the lanes
there is no order.

A link may break and come back. Messages under way are then lost as a whole, and nothing else ever
loses a message; the caller must send them again. A node with a slow sink does not delay the others:
messages to it wait in memory, and the caller must bound them.

A transport has its own thread. The sink is called there, or on a thread that pumps, one call after
the other, from `start` until `close` returns. An exception of the sink is logged, and ends only
that call.

`tests/parallel/contract.py` tests each transport for each sentence of this page.
"""

from __future__ import annotations

import enum
import logging
import traceback
from collections.abc import Callable, Sequence
from typing import NewType, Protocol, TypeAlias

from ding_lite.log import Throttle

CLOSE_TIMEOUT_S = 1.0
"""Seconds for which `close` tries to send accepted messages."""

Link = NewType("Link", bytes)
"""Identifies one end of a connection: the destination or the source of a message."""

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
        """Note that a dialled link has broken; it comes back by itself if it can, as the same link.

        It may be called late: messages sent before may reach another process in the peer's place.
        """

    def on_suspicion(self) -> None:
        """Note that a link which a peer has dialled is broken; `send` returns False for that link.

        It may take a moment until `send` does so; then this is called again.
        """

    def on_refused(self, node_id: int, reason: str) -> None:
        """Note that a dialled node refuses this one; it is no longer dialled."""

    def on_rejected(self, reason: str, link: Link | None = None) -> None:
        """Note that input was dropped, as malformed or of no peer, and the link that it came on."""

    def on_tick(self) -> float:
        """Send waiting messages; return the maximum seconds until the next tick.

        The last call of the sink, when the transport is closed, is a tick.
        """


def log_failure(throttle: Throttle, error: BaseException) -> None:
    """Log an exception of a sink at a limited rate: the thread serves all peers, and continues."""
    text = "a message could not be handled:\n%s"
    throttle.every(1.0, logging.ERROR, type(error).__name__, text, traceback.format_exc())


class Transport(Protocol):
    """Moves messages between this node and others; its peers may connect to it."""

    def listen(self, address: str) -> str:
        """Listen at an address, before `start`; return it with the port.

        Raises:
            ConfigError: The address is malformed, or this node cannot listen at it.
            TransportError: The address is taken.
        """

    def dial(self, node_id: int, address: str) -> None:
        """Connect to a node, now or as soon as it listens; before `start`.

        A transport may dial any number of nodes, each once, and listen too.
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
        """Send a message; safe from any thread. Its frames must not change afterwards.

        It never blocks. Messages of two threads never mix, and those of one thread keep their
        order.

        Returns:
            Whether the message was accepted; False if the link is broken or unknown, or the
            transport is closed.
        """

    def owner(self, link: Link) -> int | None:
        """Return the node that a link is proved to belong to; None without a proof."""

    def received_at(self, link: Link) -> float:
        """Return when bytes were last received on a link, even of an incomplete message.

        The time is that of the machine's monotonic clock, and at most about a second late; 0 if it
        is unknown. Only within a call of the sink.
        """

    def forget(self, link: Link) -> None:
        """Drop the incomplete messages of a link, if any; only within a call of the sink."""
        return

    def drop(self, link: Link) -> None:
        """Close a link to a peer that breaks the protocol; only within a call of the sink.

        Both sinks are called as for any other break, and the link may come back.
        """

    def wake(self) -> None:
        """Call the sink's `on_tick` now; safe from any thread and at any time."""

    @property
    def is_calling(self) -> bool:
        """Whether this thread is within a call of the sink, and must not wait for another one."""

    def pump(self, ready: Callable[[], bool], seconds: float) -> None:
        """Call the sink on this thread until `ready()`, which must not wait, or for `seconds`.

        A thread that waits for a message then gets it without a thread switch. `ready` is checked
        after each message and after `wake_pump`. The call may return at any time, and returns at
        once if the transport cannot pump, or pumps already. A signal handler must not raise
        meanwhile, as a message may be lost.
        """
        return

    def wake_pump(self) -> None:
        """Make the pumping thread check `ready` again; safe from any thread and at any time."""
        return

    def end_pump(self) -> None:
        """End the current `pump`, or else the next one; safe from any thread and at any time."""
        return

    def close(self) -> None:
        """Send the accepted messages, within a second, and end the thread.

        It is safe at any time and twice, but not within a call of the sink.
        """
