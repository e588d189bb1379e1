"""Which link leads to which node, and speaking on it."""

from __future__ import annotations

from collections.abc import Mapping

from ding_lite.parallel.link.session import Session
from ding_lite.parallel.transport.base import Lane, Link, Transport
from ding_lite.parallel.wire.envelope import Envelope, Kind


class LinkBook:
    """The links that are known to lead to a peer, one for each of them at most.

    Args:
        transport: What moves the messages.
        sessions: What this node and each of its peers owe each other.
    """

    def __init__(self, transport: Transport, sessions: Mapping[int, Session]) -> None:
        self.of_peers: dict[int, Link] = {}
        """The link of each peer that has one."""
        self._transport = transport
        self._sessions = sessions
        self._peers: dict[Link, int] = {}
        self._said_once: set[tuple[int, Link, Kind]] = set()

    def peer_of(self, link: Link) -> int | None:
        """Return which peer a link leads to."""
        return self._peers.get(link)

    def bind(self, link: Link, peer: int) -> None:
        """Note that a link leads to a peer; the one before it is forgotten."""
        self._unlink(peer)
        self._said_once -= {said for said in self._said_once if said[0] == peer}
        self.of_peers[peer] = link
        self._peers[link] = peer

    def unbind(self, peer: int) -> None:
        """Note that a peer's link has broken."""
        self._unlink(peer)
        self._sessions[peer].close_link()

    def _unlink(self, peer: int) -> None:
        if (old := self.of_peers.pop(peer, None)) is not None:
            del self._peers[old]
            self._transport.forget(old)

    def say(self, link: Link, envelope: Envelope) -> bool:
        """Send a small message; return whether somebody is there."""
        return self._transport.send(link, Lane.CONTROL, envelope.frames())

    def say_once(self, link: Link, envelope: Envelope) -> None:
        """Send a small message unless one of its kind was said so since the link was bound."""
        said = envelope.dst, link, envelope.kind
        if said not in self._said_once:
            self._said_once.add(said)
            self.say(link, envelope)

    def ping(self, peer: int, link: Link) -> bool:
        """Say that this node is there; return whether the peer is."""
        return self.say(link, self._sessions[peer].ping())
