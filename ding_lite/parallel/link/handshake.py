"""The handshake of two nodes: greetings and refusals, and what follows from each.

All of it is called with the lock of the node's links held.
"""

from __future__ import annotations

from collections.abc import Mapping

from ding_lite.errors import CodecError
from ding_lite.parallel.link.admission import Admission
from ding_lite.parallel.link.isolation import Isolation
from ding_lite.parallel.link.link_book import LinkBook
from ding_lite.parallel.link.session import Session
from ding_lite.parallel.network.topology import FIRST_TIMESTAMP_INCARNATION, NodeSpec
from ding_lite.parallel.transport.base import Link
from ding_lite.parallel.wire.codec import decode, encode
from ding_lite.parallel.wire.envelope import Envelope, Kind
from ding_lite.parallel.wire.messages import Arrival, read_greeting

_LONGEST_REASON = 1_000
NO_INCARNATION = 2**64 - 1
"""Stands for the incarnation of a node that has its place where none has it any more."""


class _PlaceTaken(CodecError):
    """Another incarnation of the node is connected, or was so after this one."""

    def __init__(self, message: str, *, holder: int) -> None:
        super().__init__(message)
        self.holder = holder
        """The incarnation that has the place."""


class Handshake:
    """Greets the peers of a node, and lets them in or not.

    Args:
        spec: Who this node is.
        sessions: What it and each of its peers owe each other.
        book: Which link leads to whom.
        admission: Remembers who did not let whom in.
        isolation: Hears that another process has taken this node's place.
    """

    def __init__(
        self,
        spec: NodeSpec,
        sessions: Mapping[int, Session],
        book: LinkBook,
        admission: Admission,
        isolation: Isolation,
    ) -> None:
        self._spec = spec
        self._sessions = sessions
        self._book = book
        self._admission = admission
        self._isolation = isolation

    def introduce(self, link: Link, peer: int) -> None:
        """Introduce this node on a link that it has dialled."""
        self._book.bind(link, peer)
        self._book.say(link, self._sessions[peer].greeting(Kind.HELLO))

    def greet(self, link: Link, envelope: Envelope, now: float) -> list[Arrival]:
        """Take a greeting and answer it, or say why not: its sender waits for the answer.

        Raises:
            CodecError: It is not let in.
        """
        peer = envelope.src
        session = self._sessions[peer]
        try:
            self._check_not_doubled(link, session, envelope)
            arrivals = session.greet(envelope, now)
        except CodecError as error:
            if envelope.kind is Kind.HELLO:
                self._admission.turned_away(peer, str(error))
                holder = error.holder if isinstance(error, _PlaceTaken) else 0
                self.turn_away(link, peer, str(error), holder=holder)
            raise
        self._book.bind(link, peer)
        self._admission.let_in(peer)
        if envelope.kind is Kind.HELLO:
            self._book.say(link, session.greeting(Kind.WELCOME))
        return arrivals

    def _check_not_doubled(self, link: Link, session: Session, envelope: Envelope) -> None:
        """Refuse a second process of the same node id, unless it is a later incarnation.

        Where no incarnation is counted it may be a later one all the same, if the present one is
        gone; but not one that had to make room before: what its successor has acknowledged is not
        here any more, so it could never catch up.
        """
        present = self._book.of_peers.get(envelope.src, link)
        known = session.peer
        if known is not None and session.was_replaced(envelope.incarnation):
            raise _PlaceTaken(
                f"another process has taken the place of node {envelope.src} since then.",
                holder=known.incarnation,
            )
        if present == link or known is None or not session.is_open:
            return
        is_later_incarnation = (
            known.incarnation < envelope.incarnation < FIRST_TIMESTAMP_INCARNATION
        )
        if not is_later_incarnation and self._book.ping(envelope.src, present):
            raise _PlaceTaken(
                f"there is a node {envelope.src} already. Give each node an id of its own.",
                holder=known.incarnation,
            )

    def ask(self, link: Link, peer: int) -> None:
        """Answer somebody who speaks before a greeting: this node may have been restarted.

        Once a link is enough: what comes until the greeting was sent before the question came.
        """
        self._book.say_once(link, self._sessions[peer].greeting(Kind.REFUSE))

    def turn_away(self, link: Link, peer: int, reason: str, *, holder: int = 0) -> None:
        """Say why somebody is not let in; nothing where the header of the message says it all.

        Args:
            link: Where it waits for the answer.
            peer: The node that it says to be.
            reason: Why, a sentence.
            holder: The incarnation of that node that has the place, if that is the reason.
        """
        refusal = Envelope(
            kind=Kind.REFUSE,
            src=self._spec.node_id,
            dst=peer,
            incarnation=self._spec.incarnation,
            seq=holder,
            meta=encode(reason).meta,
        )
        self._book.say(link, refusal)

    def take_refusal(self, link: Link, envelope: Envelope) -> bool:
        """Greet a node that asks for it, or note why it wants nothing of this one.

        Returns:
            Whether this node had thought that the two were connected.

        Raises:
            CodecError: It is no refusal, or of a connection that is not asked for.
        """
        session = self._sessions[envelope.src]
        body = decode(envelope.meta, envelope.buffers)
        if not isinstance(body, str):
            read_greeting(body, envelope.src)
            was_open = session.is_open
            session.close_link()  # it knows nothing of what was under way, or lives anew
            self._book.say(link, session.greeting(Kind.HELLO))
            return was_open
        if self._book.peer_of(link) == envelope.src and not session.is_open:
            body = body[:_LONGEST_REASON]
            if session.peer is not None and envelope.seq not in (0, self._spec.incarnation):
                self._isolation.note_refused(envelope.src, body)
            self.note_refusal(envelope.src, body)
            return False
        raise CodecError(f"Node {envelope.src} refuses what this node has not asked for.")

    def take_foreign(self, link: Link, version: int) -> None:
        """Let neither side wait for an answer where each speaks another version."""
        peer = self._book.peer_of(link)
        if peer is None:
            self.turn_away(link, 0, "")
        elif not self._sessions[peer].is_open:
            self.note_refusal(peer, f"it speaks version {version} of the protocol.")

    def note_refusal(self, peer: int, reason: str) -> None:
        """Note that a peer does not let this node in."""
        is_known = self._sessions[peer].peer is not None
        self._admission.refused_by(peer, reason, is_known=is_known)
