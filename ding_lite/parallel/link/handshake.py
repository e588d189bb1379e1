"""The handshake of two nodes: greetings, refusals, and the link that each peer is bound to.

All methods are called with the lock of the node's links held.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from ding_lite.clock import Clock
from ding_lite.errors import AuthenticationError, CodecError, DeadlineExceeded, printable
from ding_lite.log import Throttle
from ding_lite.parallel.link.isolation import Isolation
from ding_lite.parallel.link.session import HEARTBEAT_S, Session
from ding_lite.parallel.network.topology import FIRST_TIMESTAMP_INCARNATION, NodeSpec
from ding_lite.parallel.transport.base import Lane, Link, Transport
from ding_lite.parallel.wire.codec import decode, encode
from ding_lite.parallel.wire.messages import Arrival, Envelope, Kind, read_greeting

logger = logging.getLogger(__name__)

_LONGEST_REASON = 1_000
NO_INCARNATION = 2**64 - 1
"""The incarnation to name as the holder of a place that was given up."""


class _PlaceTaken(CodecError):
    """Another incarnation of the node is connected, or was connected after this one."""

    def __init__(self, message: str, *, holder: int) -> None:
        super().__init__(message)
        self.holder = holder


class Handshake:
    """Exchanges greetings with the peers of a node, or refuses them."""

    def __init__(
        self,
        spec: NodeSpec,
        sessions: Mapping[int, Session],
        transport: Transport,
        isolation: Isolation,
        clock: Clock,
    ) -> None:
        self._spec = spec
        self._sessions = sessions
        self._transport = transport
        self._isolation = isolation
        self._throttle = Throttle(logger, clock)
        self._sent_once: set[tuple[int, Link, Kind]] = set()
        self._refused_by: dict[int, str] = {}
        self._refused_peers: dict[int, str] = {}
        self._repeat_hello_at: dict[int, float] = {}
        """Peers that still hold an old link to this incarnation, and when to greet them again."""

    def send(self, link: Link, envelope: Envelope) -> bool:
        return self._transport.send(link, Lane.CONTROL, envelope.frames())

    def send_once(self, link: Link, envelope: Envelope) -> None:
        """Send a small message, unless one of its kind was sent since the link was bound."""
        sent = envelope.dst, link, envelope.kind
        if sent not in self._sent_once:
            self._sent_once.add(sent)
            self.send(link, envelope)

    def unbind(self, peer: int) -> None:
        self._bind(peer, None)
        self._sessions[peer].close_link()

    def _bind(self, peer: int, link: Link | None) -> None:
        session = self._sessions[peer]
        if session.link is not None:
            self._transport.forget(session.link)
        if link is not None:
            self._sent_once -= {sent for sent in self._sent_once if sent[0] == peer}
        session.link = link

    def send_hello(self, link: Link, peer: int) -> None:
        self._repeat_hello_at.pop(peer, None)
        self._bind(peer, link)
        self.send(link, self._sessions[peer].greeting(Kind.HELLO))

    def repeat_hellos(self, now: float) -> None:
        """Greet peers again that had not noticed that the old link to this node was gone."""
        for peer in [peer for peer, at in self._repeat_hello_at.items() if now >= at]:
            del self._repeat_hello_at[peer]
            session = self._sessions.get(peer)
            if session is not None and session.link is not None and not session.is_open:
                self.send(session.link, session.greeting(Kind.HELLO))

    def greet(self, link: Link, envelope: Envelope, now: float) -> list[Arrival]:
        """Accept a greeting and answer it; or refuse it, which its sender waits for, and raise."""
        peer = envelope.src
        session = self._sessions[peer]
        try:
            session.check_job(envelope)  # first: both may have a node of this number
            self._check_not_doubled(link, session, envelope)
            arrivals = session.greet(envelope, now)
        except CodecError as error:
            if envelope.kind is Kind.HELLO:
                self._refused_peers[peer] = printable(str(error))
                holder = error.holder if isinstance(error, _PlaceTaken) else 0
                self.refuse(link, peer, str(error), holder=holder)
            raise
        self._bind(peer, link)
        self._refused_by.pop(peer, None)
        self._refused_peers.pop(peer, None)
        if envelope.kind is Kind.HELLO:
            self.send(link, session.greeting(Kind.WELCOME))
        return arrivals

    def _check_not_doubled(self, link: Link, session: Session, envelope: Envelope) -> None:
        """Refuse a second process of the same node id, unless it is a later incarnation.

        If incarnations are timestamps, another process is accepted once the present one is gone. An
        incarnation that was replaced before is always refused: the events that its successor has
        acknowledged are no longer kept here, so it could never catch up.
        """
        present, known = session.link, session.peer
        if known is not None and envelope.incarnation in session.former_incarnations:
            raise _PlaceTaken(
                f"another process has taken the place of node {envelope.src} since then.",
                holder=known.incarnation,
            )
        if present in (None, link) or known is None or not session.is_open:
            return
        is_later_incarnation = (
            known.incarnation < envelope.incarnation < FIRST_TIMESTAMP_INCARNATION
        )
        if not is_later_incarnation and present and self.send(present, session.ping()):
            raise _PlaceTaken(
                f"there is a node {envelope.src} already. Give each node an id of its own.",
                holder=known.incarnation,
            )

    def ask(self, link: Link, peer: int) -> None:
        """Ask a peer, once a link, for the greeting that has to come before all else."""
        self.send_once(link, self._sessions[peer].greeting(Kind.REFUSE))

    def refuse(self, link: Link, peer: int, reason: str, *, holder: int = 0) -> None:
        """Refuse a process that greets as `peer`; `holder` is the incarnation in its place."""
        refusal = Envelope(
            kind=Kind.REFUSE,
            src=self._spec.node_id,
            dst=peer,
            incarnation=self._spec.incarnation,
            seq=holder,
            meta=encode(reason).meta,
        )
        self.send(link, refusal)

    def take_refusal(self, link: Link, envelope: Envelope, now: float) -> bool:
        """Greet a node that asks for it, or note its refusal; return whether it was open."""
        session = self._sessions[envelope.src]
        body = decode(envelope.meta, envelope.buffers)
        if not isinstance(body, str):
            read_greeting(envelope)
            was_open = session.is_open
            session.close_link()  # the peer lacks messages under way, or was restarted
            self.send(link, session.greeting(Kind.HELLO))
            return was_open
        if session.link == link and not session.is_open:
            body = printable(body[:_LONGEST_REASON])
            if session.peer is not None and envelope.seq not in (0, self._spec.incarnation):
                self._isolation.note_refused(envelope.src, body)
            elif session.peer is not None and envelope.seq == self._spec.incarnation:
                self._repeat_hello_at[envelope.src] = now + HEARTBEAT_S
            self.note_refusal(envelope.src, body)
            return False
        raise CodecError(f"Node {envelope.src} refuses what this node has not asked for.")

    def take_foreign(self, link: Link, version: int) -> None:
        """End the wait for an answer on both sides if the two nodes have different versions."""
        known = [session for session in self._sessions.values() if session.link == link]
        if not known:
            self.refuse(link, 0, "")
        for session in known:
            if not session.is_open:
                self.note_refusal(session.peer_id, f"it speaks version {version} of the protocol.")

    def note_refusal(self, peer: int, reason: str) -> None:
        """Note that a peer refuses this node, for good unless they have been connected before."""
        if self._sessions[peer].peer is None:
            self._refused_by[peer] = reason
        self._throttle.every(
            10.0, logging.WARNING, f"refused {peer}", "node %d refused this one: %s", peer, reason
        )

    @property
    def is_refused(self) -> bool:
        """Whether a peer that this node has never been connected to refuses it."""
        return bool(self._refused_by)

    def check_refusals(self) -> None:
        if self._refused_by:
            peer, reason = next(iter(self._refused_by.items()))
            raise AuthenticationError(
                f"Node {peer} has refused {self._spec.name}: {reason} All nodes of a job "
                f"need the same key, the same number of nodes and the same version of ding_lite."
            )

    def timed_out(self, missing: Sequence[int], timeout: float) -> DeadlineExceeded:
        spec = self._spec
        peers = ", ".join(map(self._place_of, missing))
        of_all = f" of {spec.num_nodes}" if spec.num_nodes else ""
        refused = "".join(
            f" A process that greeted as node {peer} was refused: {reason}"
            for peer, reason in self._refused_peers.items()
            if peer in missing
        )
        return DeadlineExceeded(
            f"{spec.name.capitalize()} has waited {timeout:g} s for node {peers}{of_all}.{refused} "
            f"Were all nodes started, with the same addresses and topology? A slow start needs a "
            f"longer `startup_timeout`."
        )

    def _place_of(self, peer: int) -> str:
        address = self._spec.dials.get(peer, "")
        return f"{peer} ({address})" if address.startswith("tcp") else f"{peer}"
