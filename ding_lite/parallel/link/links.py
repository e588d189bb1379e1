"""The links of a node to its peers, from the first greeting to the good-bye.

This module connects the transport, which knows links and no nodes, with the sessions, which know
peers and no links. From its greeting on a link belongs to a peer: the messages of the link go to
the peer's session, and the messages of the session are sent on the link.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from ding_lite.clock import Clock, Deadline, QuietCondition
from ding_lite.errors import CodecError
from ding_lite.interruption import is_for_program
from ding_lite.parallel.link.drain import Drain
from ding_lite.parallel.link.faults import DroppedMessages
from ding_lite.parallel.link.handshake import NO_INCARNATION, Handshake
from ding_lite.parallel.link.isolation import Isolation
from ding_lite.parallel.link.session import HEARTBEAT_S, Session
from ding_lite.parallel.network.topology import HUB, NodeSpec
from ding_lite.parallel.transport.base import Frame, Link, Transport
from ding_lite.parallel.wire.codec import Encoded
from ding_lite.parallel.wire.messages import (
    VERSION,
    Arrival,
    Dropped,
    Envelope,
    Identity,
    Joined,
    Kind,
    version_of,
)

logger = logging.getLogger(__name__)


PLACE_GIVEN_UP = (
    "it was away for so long that its place in the job was given up. Start it again to join anew."
)
"""The refusal of a node that had joined, was lost, and comes back too late."""


@dataclass(frozen=True, kw_only=True)
class LinkCallbacks:
    """The functions that links call on the thread that reads messages."""

    on_arrival: Callable[[int, Arrival], None]
    on_lost: Callable[[int], None]
    """Takes a peer that is gone without a good-bye."""
    on_tick: Callable[[], None]
    """Does what is due, before waiting messages are sent."""
    on_state_sent: Callable[[int, int], None]
    """Takes a peer and the number of the state message that was sent to it."""
    on_unknown_node: Callable[[int], bool]
    """Returns whether a greeting node that is no peer has been admitted."""
    on_cut_off: Callable[[Exception], None]
    """Takes the error, once, when this node cannot reach its job any more."""


class Links:
    """A node's links to its peers; the sink of its transport.

    Peers that are `nearby` may share the `memory` of that name.
    """

    def __init__(
        self,
        spec: NodeSpec,
        transport: Transport,
        clock: Clock,
        callbacks: LinkCallbacks,
        *,
        nearby: frozenset[int],
        memory: str,
    ) -> None:
        self._spec = spec
        self._transport = transport
        self._clock = clock
        self._callbacks = callbacks
        self.dropped = DroppedMessages(clock, owner=transport.owner, drop=transport.drop)
        """Dropped messages of peers, and messages that the transport has rejected."""
        self.on_rejected = self.dropped.add

        self._me = me = Identity(
            spec.node_id, spec.incarnation, spec.num_nodes, spec.labels, job=spec.job
        )
        near = replace(me, memory=memory)
        self.sessions = {
            peer: Session(
                near if peer in nearby else me, peer, expected_labels=expected_labels(spec, peer)
            )
            for peer in sorted(spec.peers)
        }
        """The session with each peer; hold `lock` to use it."""
        lock = threading.RLock()
        self.lock: AbstractContextManager[object] = lock
        """The lock of `changed`; entering it costs less than entering the condition."""
        self.changed: threading.Condition = QuietCondition(lock)
        self._takes_more = spec.growth is not None and spec.node_id == HUB
        self.has_audience = self._takes_more
        """Whether a peer is connected, or was and has not said good-bye, or may join."""
        self.is_active = False
        self.end_of_run: Encoded | None = None
        """The newest end of a run, as an event; peers that join or restart later get it as well."""
        self.address: str | None = None
        """The address where peers dial this node; None if they do not."""

        self.is_drain_cancelled = False
        self._ended: dict[int, int] = {}
        """The last incarnations of peers with an ended process."""
        self._isolation = Isolation(spec, self.sessions)
        self._handshake = Handshake(spec, self.sessions, transport, self._isolation, clock)
        self._lost: set[int] = set()
        self._parted: set[int] = set()
        self._moved: dict[int, str] = {}
        self._stops_waiting = False
        self._is_flushing = False
        self._is_due = True
        self._next_tick_at = 0.0

    # -- from the program's threads ----------------------------------------------------------

    def start(self) -> None:
        if self._spec.listen is not None:
            self.address = self._transport.listen(self._spec.listen)
        for peer, address in self._spec.dials.items():
            if address:  # else `redial` sets it later
                self._transport.dial(peer, address)
        self._transport.start(self)

    @property
    def connected(self) -> tuple[int, ...]:
        with self.lock:
            return tuple(sorted(peer for peer, session in self.sessions.items() if session.is_open))

    def wake(self) -> None:
        """Make the transport's thread send the waiting messages of the sessions soon."""
        self._is_due = True
        self._transport.wake()

    def flush(self, to: int | None = None) -> None:
        """Send waiting messages, with `lock` held; a single small one at once.

        This saves the way over the transport's thread, which is most of the cost of such a message.
        If only one peer has waiting messages, it is `to`.
        """
        is_signal_handler, self._is_flushing = self._is_flushing, True
        if is_signal_handler:  # it has interrupted another call of `flush`
            self.wake()
            return
        try:
            for session in self.sessions.values() if to is None else [self.sessions[to]]:
                if session.link is None:
                    continue
                message, is_done = None, False
                try:
                    message = session.single_message(self._clock.now())
                    is_done = message is None or self._handshake.send(session.link, message)
                finally:
                    if not is_done:  # nothing was sent; after an interrupt this is unknown
                        session.events.retransmit()
                    if not is_done or (message is None and session.has_waiting):
                        self.wake()
        finally:
            self._is_flushing = False
        self.changed.notify_all()

    def wait_ready(self, timeout: float | None) -> None:
        """Block until every peer has greeted or `stop_waiting`; raise if one refuses or is late.

        In an elastic star that is started by hand as many other nodes will do.
        """
        with self.lock:
            in_time = Deadline.after(timeout, self._clock).wait(
                self.changed,
                lambda: self._handshake.is_refused or self._stops_waiting or not self._missing(),
            )
            self._handshake.check_refusals()
            if not in_time:
                raise self._handshake.timed_out(self._missing(), timeout or 0.0)

    def stop_waiting(self) -> None:
        """Let `wait_ready` return, even if peers are missing."""
        with self.lock:
            self._stops_waiting = True
            self.changed.notify_all()

    def _missing(self) -> list[int]:
        known = {peer for peer, session in self.sessions.items() if session.peer is not None}
        missing, growth = sorted(self._spec.peers - known), self._spec.growth
        if growth is None or growth.first_id >= self._spec.num_nodes:
            return missing
        return missing[: max(0, len(self._spec.peers) - len(known))]

    def close(self, *, good_bye: bool, linger: float, has_more: Callable[[], bool]) -> None:
        """Wait until the peers have received everything, and exchange good-byes.

        A transport may drop what a peer has not read when it disconnects, so this node stays until
        the peers have answered its good-bye, which is the last thing that it sends. It waits for a
        peer for `linger` seconds since its last message; `has_more` tells of messages that the
        sessions do not hold yet.
        """
        with self.lock:
            for session in self.sessions.values():
                session.request_acknowledgement()
            self._isolation.settle()
        self.wake()
        with self.lock:
            drain = Drain(
                self._spec,
                self.sessions,
                self._ended,
                self._clock,
                good_bye=good_bye,
                linger=linger,
                has_more=has_more,
            )
            while True:
                for peer in drain.ready:
                    self._send_good_bye(peer)
                ends_at = drain.ends_at()
                if self.is_drain_cancelled or ends_at <= self._clock.now():
                    break
                self._clock.wait(self.changed, ends_at)
            drain.report(was_cancelled=self.is_drain_cancelled)

    def cancel_drain(self) -> None:
        with self.lock:
            self.is_drain_cancelled = True
            self.changed.notify_all()

    def note_ended(self, peer: int, incarnation: int) -> None:
        """Note that the process of a peer has ended: `close` stops waiting for that incarnation."""
        with self.lock:
            self._ended[peer] = max(incarnation, self._ended.get(peer, 0))
            self.changed.notify_all()

    def settle(self) -> None:
        """Note that the job has ended: from now on losing all peers is no error."""
        with self.lock:
            self._isolation.settle()

    def end(self) -> None:
        with self.lock:
            for session in self.sessions.values():
                session.close_link()
            self._update()

    def redial(self, peer: int, address: str) -> None:
        """Dial a peer at another address from now on; it is lost until it has answered there."""
        with self.lock:
            self._moved[peer] = address
        self.wake()

    def admit(self, peer: int) -> bool:
        """Add a peer; return whether it is a new one."""
        with self.lock:
            is_new = peer not in self.sessions
            if is_new:
                self._parted.discard(peer)
                self.sessions[peer] = session = Session(self._me, peer)
                self._post_end_of_run(session)
        self._transport.admit(peer)
        return is_new

    def dismiss(self, peer: int) -> None:
        """Remove a peer; only within a callback of the transport."""
        with self.lock:
            session = self.sessions.get(peer)
            if session is None:
                return
            has_left, session.has_left = session.has_left, True  # so that no `emit` waits for it
            if session.link is not None:
                if not has_left:  # else it waits for the answer to its good-bye
                    self._transport.drop(session.link)
                self._handshake.unbind(peer)
            self._moved.pop(peer, None)
            self._lost.discard(peer)
            if has_left:
                self._parted.add(peer)
            del self.sessions[peer]
            self._update()

    # -- called by the transport, on its thread ----------------------------------------------

    def on_up(self, link: Link, node_id: int) -> None:
        with self.lock:
            self._handshake.send_hello(link, node_id)

    def on_message(self, link: Link, frames: list[Frame]) -> None:
        try:
            envelope = Envelope.from_frames(frames)
            arrivals = self._take(link, envelope)
        except CodecError as error:
            self.dropped.add(str(error), link)
            version = version_of(frames)
            if version is not None and version != VERSION:
                with self.lock:
                    self._handshake.take_foreign(link, version)
                    self._update()
            return
        for arrival in arrivals:
            if isinstance(arrival, Dropped):
                self.dropped.add(arrival.reason, link if arrival.is_fault else None)
                continue
            if isinstance(arrival, Joined):
                self._lost.discard(envelope.src)
            try:
                self._callbacks.on_arrival(envelope.src, arrival)
            except BaseException as error:  # a task's own listeners raise in the task
                if is_for_program(error):
                    raise
                logger.exception("a listener of node %d's router has raised", self._spec.node_id)

    def on_down(self, link: Link) -> None:
        with self.lock:
            gone = [peer for peer, session in self.sessions.items() if session.link == link]
            self._unbind(gone)
        self._note_lost(gone)

    def on_suspicion(self) -> None:
        """Send each peer a heartbeat to find broken links.

        A dialled peer that has not greeted yet gets none: it would take any message for a sign that
        this node is ready.
        """
        with self.lock:
            gone = [
                peer
                for peer, session in self.sessions.items()
                if session.link is not None
                and (session.is_open or session.has_left)
                and not self._handshake.send(session.link, session.ping())
            ]
            self._unbind(gone)
        self._note_lost(gone)

    def on_refused(self, node_id: int, reason: str) -> None:
        with self.lock:
            self._handshake.note_refusal(node_id, reason)
            self._update()

    def on_tick(self) -> float:
        """Send waiting messages of the sessions, and drop the links of silent peers.

        It is called after each message, and returns at once if nothing is due: a thread that the
        message has woken can only continue when this thread waits again.
        """
        now = self._clock.now()
        if now < self._next_tick_at and not self._is_due:
            return self._next_tick_at - now
        self._is_due = False  # before anything is looked at, so that nothing is missed
        self._callbacks.on_tick()
        self._redial_moved()
        with self.lock:
            wait_s = HEARTBEAT_S
            silent = []
            self._handshake.repeat_hellos(now)
            for peer, session in self.sessions.items():
                if session.link is None:
                    continue
                rest_s = session.seconds_to_tick(now)
                if rest_s <= 0.0:
                    if not self._send_waiting(session, session.link, now):
                        self._transport.drop(session.link)  # a new connection may work again
                        silent.append(peer)
                    rest_s = session.seconds_to_tick(now)
                wait_s = min(wait_s, rest_s)
            self._unbind(silent)
            self._next_tick_at = now + wait_s
            cut_off = self._isolation.check(now)
            self.changed.notify_all()
        self._note_lost(silent)
        if cut_off is not None:
            self._callbacks.on_cut_off(cut_off)
        return wait_s

    def _take(self, link: Link, envelope: Envelope) -> list[Arrival]:
        now, session = self._clock.now(), self.sessions.get(envelope.src)
        if session is None or session.link != link:  # else it was checked with its greeting
            self._check_owner(link, envelope.src)
        is_replaced = False
        with self.lock:
            if session is None and self._spec.growth and envelope.kind is Kind.HELLO:
                if self._callbacks.on_unknown_node(envelope.src):
                    session = self.sessions.get(envelope.src)
                else:
                    self._handshake.refuse(
                        link, envelope.src, PLACE_GIVEN_UP, holder=NO_INCARNATION
                    )
            if envelope.src in self._parted and envelope.kind is not Kind.HELLO:
                return []  # sent before it received the answer to its good-bye
            if session is None or envelope.dst != self._spec.node_id:
                raise CodecError(
                    f"Node {envelope.src} is no peer of node {self._spec.node_id}, or wrote "
                    f"to node {envelope.dst}."
                )
            arrivals: list[Arrival] = []
            if envelope.kind in (Kind.HELLO, Kind.WELCOME):
                is_replaced = session.is_open
                arrivals = self._greet(session, link, envelope, now)
            elif envelope.kind is Kind.REFUSE:
                is_replaced = self._handshake.take_refusal(link, envelope, now)
            elif session.link != link:
                self._handshake.ask(link, envelope.src)
                reason = f"A message of node {envelope.src} came before its greeting."
                arrivals = [Dropped(reason, is_fault=False)]
            else:
                # After most events nothing is due but their acknowledgement.
                is_plain = envelope.kind is Kind.EVENT and session.peer_has_greeted
                arrivals = session.take(envelope, now)
                if session.is_open:
                    due_at = session.ack_at if is_plain else now + session.seconds_to_tick(now)
                    self._next_tick_at = min(self._next_tick_at, due_at)
                    self.changed.notify_all()
                    return arrivals
                if arrivals and session.has_left:
                    self._send_good_bye(envelope.src)
                    self._handshake.send(link, session.acknowledgement())
            self._update()
        if is_replaced:  # its former process has ended unnoticed
            self._note_lost([envelope.src])
        return arrivals

    def _greet(self, session: Session, link: Link, envelope: Envelope, now: float) -> list[Arrival]:
        former = session.peer
        arrivals = self._handshake.greet(link, envelope, now)
        if former is not None and former.incarnation != envelope.incarnation:
            self._post_end_of_run(session)
        return arrivals

    def _check_owner(self, link: Link, node: int) -> None:
        owner = self._transport.owner(link)
        if owner not in (None, node):
            raise CodecError(f"Node {owner} wrote in the name of node {node}.")

    # -- inside --------------------------------------------------------------------------------

    def _redial_moved(self) -> None:
        with self.lock:
            moved, self._moved = self._moved, {}
            followed = [
                peer
                for peer, session in self.sessions.items()
                if peer in moved and session.link is not None
            ]
            self._unbind(followed)
        for peer, address in moved.items():
            self._transport.redial(peer, address)
        self._note_lost(followed)

    def _send_waiting(self, session: Session, link: Link, now: float) -> bool:
        for lane, envelope in session.outgoing(now):
            if not self._transport.send(link, lane, envelope.frames()):
                return False
            if envelope.kind is Kind.STATE:
                self._callbacks.on_state_sent(session.peer_id, envelope.seq)
        if session.is_silent(now):  # or a large message is being received
            session.received_at = max(session.received_at, self._transport.received_at(link))
        return not session.is_silent(now)

    def _post_end_of_run(self, session: Session) -> None:
        if self.end_of_run is not None:
            session.events.post(self.end_of_run)

    def _send_good_bye(self, peer: int) -> None:
        session = self.sessions[peer]
        if session.link is not None:
            self._handshake.send_once(session.link, session.good_bye())

    def _update(self) -> None:
        """Wake all waiting threads, and make the next tick check the sessions."""
        self._is_due = True
        met = [session for session in self.sessions.values() if session.peer is not None]
        self.is_active = bool(met)
        self.has_audience = self._takes_more or not all(session.has_left for session in met)
        self.changed.notify_all()

    def _unbind(self, peers: Sequence[int]) -> None:
        for peer in peers:
            self._handshake.unbind(peer)
        if peers:
            self._update()

    def _note_lost(self, peers: Sequence[int]) -> None:
        """Tell, without the lock, that peers are lost, unless they have left."""
        for peer in peers:
            session = self.sessions.get(peer)
            if session is not None and not session.has_left and peer not in self._lost:
                self._lost.add(peer)
                self._callbacks.on_lost(peer)


def expected_labels(spec: NodeSpec, peer: int) -> frozenset[str]:
    """Return the labels that a node must have by this node's plan; it may have more."""
    has_plan = spec.growth is None and peer < len(spec.world)
    return spec.world[peer] if has_plan else frozenset()
