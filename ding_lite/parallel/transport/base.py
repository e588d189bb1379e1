"""The contract of a transport: it moves messages between nodes and knows nothing of them.

A message is a list of frames, all or nothing. Between two nodes lies one link with two lanes:
`CONTROL` for what is small and urgent, `BULK` for what is large, so that a large message never
delays a small one. Each lane keeps its order, in each direction; between the lanes there is none.

A link may break and come back. Messages under way are lost then, whole, and nothing else ever
loses one; it is the caller's to send them again. A node whose sink is slow does not make the
others wait: what is sent to it waits in memory, and it is the caller's to bound that.

A transport has one thread of its own. Everything of the sink is called there, or on one that
pumps, one call after the other, from `start` until `close` returns. What the sink raises is
logged, and costs nothing but that call.

`tests/parallel/contract.py` holds every transport to every sentence of this page.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NewType, Protocol, TypeAlias

CLOSE_TIMEOUT_S = 1.0
"""How long `close` tries to send what was taken."""

Link = NewType("Link", bytes)
"""One end of a connection: names whom a message goes to or came from."""

Frame: TypeAlias = bytes | memoryview
"""One part of a message."""


class Lane(enum.Enum):
    """Which of a link's two connections carries a message."""

    CONTROL = b"c"
    BULK = b"b"


class Sink(Protocol):
    """Who takes what a transport has to say; called as that page tells."""

    def on_up(self, link: Link, node_id: int) -> None:
        """A link that was dialled to a node carries messages now."""
        ...

    def on_message(self, link: Link, frames: list[Frame]) -> None:
        """A message has come; its frames are the receiver's own, for as long as it wants them."""
        ...

    def on_down(self, link: Link) -> None:
        """A link that was dialled has broken; it comes back by itself if it can, as the same.

        It may be told late: what is sent before may reach who has come in the place of the other.
        """
        ...

    def on_doubt(self) -> None:
        """Some link that was dialled from elsewhere has broken; a `send` will tell which.

        It may take a moment until a `send` knows; then this is called again.
        """
        ...

    def on_refused(self, node_id: int, reason: str) -> None:
        """A node that was dialled does not let this one in; it is not dialled any more."""
        ...

    def on_rejected(self, reason: str, link: Link | None = None) -> None:
        """Something that came in was dropped: no message, or from nobody this node knows.

        Args:
            reason: What was wrong with it.
            link: Where it came from, if it came on a link.
        """
        ...

    def on_tick(self) -> float:
        """Send what there is to send; return the seconds until the next turn at the latest.

        The last call of all, when the transport is closed, is one of these.
        """
        ...


class Transport(Protocol):
    """Moves messages between this node and others."""

    def listen(self, address: str) -> str:
        """Let others dial this node, before `start`; return where.

        Raises:
            ConfigError: The address is none, or not one to listen at.
            TransportError: It is taken.
        """
        ...

    def dial(self, node_id: int, address: str) -> None:
        """Connect to a node, now or as soon as it listens; before `start`.

        Each call makes a link of its own. It may dial any number of nodes, and listen as well.
        """
        ...

    def start(self, sink: Sink) -> None:
        """Begin to move messages."""
        ...

    def redial(self, node_id: int, address: str) -> None:
        """Connect to a node at another address than before; only within a call of the sink.

        The links that were dialled to it are given up without a word, and a new one is made.

        Raises:
            ConfigError: The address is none.
        """
        ...

    def admit(self, node_id: int) -> None:
        """Let a further node connect to this one from now on; safe from any thread."""
        ...

    def send(self, link: Link, lane: Lane, frames: Sequence[Frame]) -> bool:
        """Send a message; safe from any thread. Its frames must not change any more.

        It waits for nobody. Messages of two threads never mix, and each thread's keep their order.

        Returns:
            Whether it was taken; False where the link is broken or nobody knows it, and once the
            transport is closed.
        """
        ...

    def owner(self, link: Link) -> int | None:
        """Return which node a link is proved to come from; None where nothing proves it."""
        ...

    def brought_at(self, link: Link) -> float:
        """Return when bytes have last come on a link, of a message that may not be whole yet.

        By the machine's monotonic clock, and about a second late at most; 0 where that is not
        known. Only within a call of the sink.
        """
        ...

    def forget(self, link: Link) -> None:
        """Give up what a link has left incomplete; only within a call of the sink."""
        ...

    def drop(self, link: Link) -> None:
        """Break a link whose other end does not keep to the rules; only within a call of the sink.

        Both ends are told as of any other break, and it may come back.
        """
        ...

    def wake(self) -> None:
        """Make the sink's next turn come now; safe from any thread and at any time."""
        ...

    @property
    def is_calling(self) -> bool:
        """Whether this thread is within a call of the sink, which must not wait for another one."""
        ...

    def pump(self, ready: Callable[[], bool], seconds: float) -> None:
        """Serve the sink on this thread until `ready()`, or for so long.

        For who waits for a message anyway: it comes without a change of thread then. It may return
        at any time, and does so at once where the transport cannot do it or does it already.

        What a signal's handler raises meanwhile may lose a message: none must.

        Args:
            ready: Asked after what has come was handed on, and after `wake_pump`. It must not wait.
            seconds: How long at most.
        """
        ...

    def wake_pump(self) -> None:
        """Make the pumping thread check `ready` again; safe from any thread and at any time."""
        ...

    def close(self) -> None:
        """Send what was taken, within a second, and end the thread.

        Safe at any time and twice, but not within a call of the sink.
        """
        ...
