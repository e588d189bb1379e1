"""One ZeroMQ transport that two routers of a node share, listening at one address.

The second router is for the other nodes: those that are no peers and connect all the same. A
message goes to the router of the node that its connection is proved to belong to. Both routers
run on the transport's one thread. The second router begins first and ends first.
"""

from __future__ import annotations

from collections.abc import Callable

from ding_lite.parallel.transport.base import Frame, Link, Sink, Transport
from ding_lite.parallel.transport.zeromq.transport import ZeroMQTransport


class SharedTransport(ZeroMQTransport):
    """Moves messages for a node's peers, and in its part `others` for the other nodes.

    Args:
        node_id: This node.
        peers: The peers that may connect to it.
        others: The other nodes that may.
        key_file: Where the key of the job lies; without one the user's own key does.
    """

    def __init__(
        self,
        node_id: int,
        peers: frozenset[int],
        others: frozenset[int],
        *,
        key_file: str | None = None,
    ) -> None:
        super().__init__(node_id, peers=peers | others, key_file=key_file)
        self._other_ids = others
        self._others = _Others(self)

    @property
    def others(self) -> Transport:
        """The part for the other nodes."""
        return self._others

    def start(self, sink: Sink) -> None:
        """Begin to move messages, for the second router too if it has begun."""
        others = self._others.sink
        super().start(sink if others is None else _Fork(sink, others, self._is_other))

    def _is_other(self, link: Link | None) -> bool:
        return link is not None and self.owner(link) in self._other_ids


class _Others:
    """The second router's view of the transport; the first router opens and closes it."""

    def __init__(self, transport: Transport) -> None:
        self.sink: Sink | None = None
        self._transport = transport
        self.dial = transport.dial
        self.redial = transport.redial
        self.admit = transport.admit
        self.send = transport.send
        self.owner = transport.owner
        self.brought_at = transport.brought_at
        self.forget = transport.forget
        self.drop = transport.drop
        self.wake = transport.wake
        self.pump = transport.pump
        self.wake_pump = transport.wake_pump

    @property
    def is_calling(self) -> bool:
        """Whether this thread is within a call of a sink."""
        return self._transport.is_calling

    def listen(self, address: str) -> str:
        """Do nothing: the first router listens there."""
        return address

    def start(self, sink: Sink) -> None:
        """Take messages of other nodes, once the first router has begun."""
        self.sink = sink

    def close(self) -> None:
        """Do nothing: the first router closes the transport."""


class _Fork:
    """Passes each call on to one of two sinks."""

    def __init__(self, peers: Sink, others: Sink, is_other: Callable[[Link | None], bool]) -> None:
        self._peers = peers
        self._others = others
        self._is_other = is_other

    def on_up(self, link: Link, node_id: int) -> None:
        self._of(link).on_up(link, node_id)

    def on_message(self, link: Link, frames: list[Frame]) -> None:
        self._of(link).on_message(link, frames)

    def on_down(self, link: Link) -> None:
        self._of(link).on_down(link)

    def on_doubt(self) -> None:
        self._peers.on_doubt()
        self._others.on_doubt()

    def on_refused(self, node_id: int, reason: str) -> None:
        self._peers.on_refused(node_id, reason)

    def on_rejected(self, reason: str, link: Link | None = None) -> None:
        self._of(link).on_rejected(reason, link)

    def on_tick(self) -> float:
        return min(self._peers.on_tick(), self._others.on_tick())

    def _of(self, link: Link | None) -> Sink:
        return self._others if self._is_other(link) else self._peers
