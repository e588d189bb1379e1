"""One ZeroMQ transport that two routers of a node share, listening at one address.

The second router is for the other nodes: those that are no peers and connect all the same. A
message goes to the router of the node that its connection is proved to belong to. Both routers
run on the transport's one thread. The second router begins first and ends first.
"""

from __future__ import annotations

from typing import Any, cast

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
        self._part = _Part(self)
        self.other_ids = others
        self.others = cast(Transport, self._part)
        """The part for the other nodes."""

    def start(self, sink: Sink) -> None:
        others = self._part.sink
        super().start(sink if others is None else _Fork(self, sink, others))


class _Part:
    """The second router's view of the transport; the first router opens and closes it."""

    sink: Sink | None = None

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def listen(self, address: str) -> str:
        return address

    def start(self, sink: Sink) -> None:
        self.sink = sink

    def close(self) -> None:
        pass


class _Fork:
    """Passes each call on to one of two sinks."""

    def __init__(self, transport: SharedTransport, peers: Sink, others: Sink) -> None:
        self._transport = transport
        self._peers = peers
        self._others = others

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
        is_other = link is not None and self._transport.owner(link) in self._transport.other_ids
        return self._others if is_other else self._peers
