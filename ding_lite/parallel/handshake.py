"""The handshake of two nodes: greetings and refusals, and what follows from each.

All of it is called with the lock of the node's links held.
"""

from __future__ import annotations

from collections.abc import Mapping

from ding_lite.errors import CodecError
from ding_lite.parallel.admission import Admission
from ding_lite.parallel.codec import decode, encode
from ding_lite.parallel.envelope import Envelope, Kind
from ding_lite.parallel.link_book import LinkBook
from ding_lite.parallel.messages import Arrival
from ding_lite.parallel.session import Session
from ding_lite.parallel.topology import FIRST_UNCOUNTED_EPOCH, NodeSpec
from ding_lite.parallel.transport.base import Link


class Handshake:
    """Greets the neighbours of a node, and lets them in or not.

    Args:
        spec: Who this node is.
        sessions: What it and each of its neighbours owe each other.
        book: Which link leads to whom.
        admission: Remembers who did not let whom in.
    """

    def __init__(
        self,
        spec: NodeSpec,
        sessions: Mapping[int, Session],
        book: LinkBook,
        admission: Admission,
    ) -> None:
        self._spec = spec
        self._sessions = sessions
        self._book = book
        self._admission = admission

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
                self.turn_away(link, peer, str(error))
            raise
        self._book.bind(link, peer)
        self._admission.let_in(peer)
        if envelope.kind is Kind.HELLO:
            self._book.say(link, session.greeting(Kind.WELCOME))
        return arrivals

    def _check_not_doubled(self, link: Link, session: Session, envelope: Envelope) -> None:
        """Refuse a second process of the same node id, unless it is a later life of the node."""
        present = self._book.of_peers.get(envelope.src, link)
        known = session.peer
        if present == link or known is None or not session.is_open:
            return
        is_later_life = known.epoch < envelope.epoch < FIRST_UNCOUNTED_EPOCH
        if not is_later_life and self._book.ping(envelope.src, present):
            raise CodecError(
                f"there is a node {envelope.src} already. Give each node an id of its own."
            )

    def ask(self, link: Link, peer: int) -> None:
        """Answer somebody who speaks before a greeting: this node may have been restarted.

        Once a link is enough: what comes until the greeting was sent before the question came.
        """
        self._book.say_once(link, self._sessions[peer].greeting(Kind.REFUSE))

    def turn_away(self, link: Link, peer: int, reason: str) -> None:
        """Say why somebody is not let in; nothing where the header of the message says it all."""
        refusal = Envelope(
            kind=Kind.REFUSE,
            src=self._spec.node_id,
            dst=peer,
            epoch=self._spec.epoch,
            meta=encode(reason).meta,
        )
        self._book.say(link, refusal)

    def take_refusal(self, link: Link, envelope: Envelope) -> bool:
        """Greet a node that asks for it, or note why it wants nothing of this one.

        Returns:
            Whether this node had thought that the two were connected.
        """
        session = self._sessions[envelope.src]
        body = decode(envelope.meta, envelope.buffers)
        if not isinstance(body, str):
            was_open = session.is_open
            session.close_link()  # it knows nothing of what was under way, or lives anew
            self._book.say(link, session.greeting(Kind.HELLO))
            return was_open
        if self._book.peer_of(link) == envelope.src and not session.is_open:
            self.note_refusal(envelope.src, body)
        return False

    def take_foreign(self, link: Link, version: int) -> None:
        """Let neither side wait for an answer where each speaks another version."""
        peer = self._book.peer_of(link)
        if peer is None:
            self.turn_away(link, 0, "")
        elif not self._sessions[peer].is_open:
            self.note_refusal(peer, f"it speaks version {version} of the protocol.")

    def note_refusal(self, peer: int, reason: str) -> None:
        """Note that a neighbour does not let this node in."""
        is_known = self._sessions[peer].peer is not None
        self._admission.refused_by(peer, reason, is_known=is_known)
