"""One ZeroMQ transport for two routers of a node, which listen at one address.

The second router is for guests: nodes that are no neighbours and connect all the same. Whatever
comes goes to one or the other by the node that it is proved to come from. Both routers live on
the transport's one thread. The guests' one begins first and ends first.
"""

from __future__ import annotations

from collections.abc import Callable

from ding_lite.parallel.transport.base import Frame, Link, Sink, Transport
from ding_lite.parallel.transport.zeromq.transport import ZeroMQTransport


class ForkedTransport(ZeroMQTransport):
    """Moves messages for a node's neighbours; has a part for its guests.

    Args:
        node_id: This node.
        peers: The neighbours that may connect to it.
        guests: The others that may.
        key_file: Where the key of the job lies; without one the user's own key does.
    """

    def __init__(
        self,
        node_id: int,
        peers: frozenset[int],
        guests: frozenset[int],
        *,
        key_file: str | None = None,
    ) -> None:
        super().__init__(node_id, peers=peers | guests, key_file=key_file)
        self._guest_ids = guests
        self._guests = _Guests(self)

    @property
    def guests(self) -> Transport:
        """The part for the guests."""
        return self._guests

    def start(self, sink: Sink) -> None:
        """Begin to move messages: the guests' router has begun."""
        guests = self._guests.sink
        super().start(sink if guests is None else _Fork(sink, guests, self._is_guest))

    def _is_guest(self, link: Link | None) -> bool:
        return link is not None and self.owner(link) in self._guest_ids


class _Guests:
    """What a router has for a transport that is another one's; it takes no guest's leave of it."""

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
        self.attend = transport.attend
        self.rouse = transport.rouse

    @property
    def is_calling(self) -> bool:
        """Whether this thread is within a call of a sink."""
        return self._transport.is_calling

    def listen(self, address: str) -> str:
        """Leave it to the other router to listen there."""
        return address

    def start(self, sink: Sink) -> None:
        """Take what comes from guests, once the other router has begun."""
        self.sink = sink

    def close(self) -> None:
        """Leave it to the other router to close what is its own."""


class _Fork:
    """Hands what comes to one of two sinks."""

    def __init__(
        self, members: Sink, guests: Sink, is_guest: Callable[[Link | None], bool]
    ) -> None:
        self._members = members
        self._guests = guests
        self._is_guest = is_guest

    def on_up(self, link: Link, node_id: int) -> None:
        self._of(link).on_up(link, node_id)

    def on_message(self, link: Link, frames: list[Frame]) -> None:
        self._of(link).on_message(link, frames)

    def on_down(self, link: Link) -> None:
        self._of(link).on_down(link)

    def on_doubt(self) -> None:
        self._members.on_doubt()
        self._guests.on_doubt()

    def on_refused(self, node_id: int, reason: str) -> None:
        self._members.on_refused(node_id, reason)

    def on_rejected(self, reason: str, link: Link | None = None) -> None:
        self._of(link).on_rejected(reason, link)

    def on_turn(self) -> float:
        return min(self._members.on_turn(), self._guests.on_turn())

    def _of(self, link: Link | None) -> Sink:
        return self._guests if self._is_guest(link) else self._members
