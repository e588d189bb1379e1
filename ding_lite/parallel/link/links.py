"""The links of a node: who is connected to it, from the first greeting to the good-bye.

It stands between the transport, which knows links and no nodes, and the sessions, which know
what two nodes owe each other and no links. A link belongs to a node from the greeting on; what
comes on it goes to that node's session, and what the session has to say goes out on it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from ding_lite.clock import Clock, Deadline
from ding_lite.errors import CodecError, ConfigError
from ding_lite.foreign import is_for_program
from ding_lite.parallel.link.drain import Drain
from ding_lite.parallel.link.handshake import NO_INCARNATION, Handshake, LinkTable
from ding_lite.parallel.link.isolation import Isolation
from ding_lite.parallel.link.refusals import DroppedMessages, Refusals
from ding_lite.parallel.link.session import HEARTBEAT_S, Session
from ding_lite.parallel.network.topology import HUB, NodeSpec
from ding_lite.parallel.transport.base import Frame, Link, Transport
from ding_lite.parallel.wire.codec import Encoded
from ding_lite.parallel.wire.envelope import VERSION, Envelope, Kind, version_of
from ding_lite.parallel.wire.messages import Arrival, Dropped, Identity, Joined

logger = logging.getLogger(__name__)


PLACE_GIVEN_UP = (
    "it was away for so long that its place in the job was given up. Start it again to join anew."
)
"""What a node is told that had joined, was lost, and comes back too late."""


class _Changes(threading.Condition):
    """A condition that costs nothing to notify while nobody waits."""

    def __init__(self) -> None:
        super().__init__()
        self._num_waiting = 0

    def wait(self, timeout: float | None = None) -> bool:
        self._num_waiting += 1
        try:
            return super().wait(timeout)
        finally:
            self._num_waiting -= 1

    def notify_all(self) -> None:
        if self._num_waiting:
            super().notify_all()


class Links:
    """A node's links to its peers; the sink of its transport.

    Args:
        spec: Who this node is and whom it is connected to.
        transport: What moves the messages.
        clock: What silence and waits are measured by.
        nearby: The peers that may share memory with this node.
        memory: What memory that is.
        on_arrival: Takes what a node has sent, on the thread that reads it.
        on_lost: Hears of a node that is gone without a good-bye, on the same thread.
        on_tick: Is called now and then, on the same thread.
    """

    def __init__(
        self,
        spec: NodeSpec,
        transport: Transport,
        clock: Clock,
        *,
        nearby: frozenset[int],
        memory: str,
        on_arrival: Callable[[int, Arrival], None],
        on_lost: Callable[[int], None],
        on_tick: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._transport = transport
        self._clock = clock
        self._on_arrival = on_arrival
        self._on_lost = on_lost
        self._on_tick = on_tick
        self._refusals = Refusals(spec, clock)
        self._dropped = DroppedMessages(clock, owner=transport.owner, drop=transport.drop)

        self._me = me = Identity(
            spec.node_id, spec.incarnation, spec.num_nodes, spec.labels, job=spec.job
        )
        near = replace(me, memory=memory)
        self.sessions = {
            peer: Session(near if peer in nearby else me, peer) for peer in sorted(spec.peers)
        }
        """What this node and each of its peers owe each other; look at it under `changed`."""
        self.changed: threading.Condition = _Changes()
        self._takes_more = spec.growth is not None and spec.node_id == HUB
        self.has_audience = self._takes_more
        """Whether anybody is connected, or was and has not said good-bye, or may join."""
        self.is_active = False
        """Whether anybody is connected."""
        self.address: str | None = None
        """Where others dial this node, if they do."""
        self.on_ctx_sent: Callable[[int, int], None] = lambda peer, number: None
        """Hears which message with ctx values a node is sent, by its number."""
        self.on_cut_off: Callable[[Exception], None] = lambda error: None
        """Hears, once, why this node must end: it cannot reach its job any more."""

        self.on_unknown_node: Callable[[int], bool] = lambda peer: False
        """Tells whether a node that greets and is no peer was admitted now."""

        self._table = LinkTable(transport, self.sessions)
        self._drain = Drain(spec, self.sessions, clock)
        self._isolation = Isolation(spec, self.sessions)
        self._handshake = Handshake(
            spec, self.sessions, self._table, self._refusals, self._isolation
        )
        self._lost: set[int] = set()
        self._parted: set[int] = set()
        self._moved: dict[int, str] = {}
        self._waits_no_more = False
        self._is_saying = False
        self._is_due = True
        self._next_turn_at = 0.0

    # -- from the program's threads ----------------------------------------------------------

    def start(self) -> None:
        """Listen and dial.

        Raises:
            ConfigError: Other machines can reach the address, or it is on another machine and there
                is no key.
            TransportError: The address cannot be taken.
        """
        if self._spec.listen is not None:
            self.address = self._transport.listen(self._spec.listen)
        for peer, address in self._spec.dials.items():
            if address:  # else `redial` tells it later
                self._transport.dial(peer, address)
        self._transport.start(self)

    @property
    def connected(self) -> tuple[int, ...]:
        """The ids of the nodes that are connected."""
        with self.changed:
            return tuple(sorted(peer for peer, session in self.sessions.items() if session.is_open))

    @property
    def num_rejected(self) -> int:
        """Messages that were dropped because they were none, or not for this node."""
        return self._dropped.count

    @property
    def is_calling(self) -> bool:
        """Whether this thread hands on what has come, and so must not wait for what comes."""
        return self._transport.is_calling

    def pump(self, ready: Callable[[], bool], timeout: float | None) -> None:
        """Take what comes on this thread until `ready()`, where that is possible and saves time.

        It may return at any time: who waits must go on to wait in its own way.

        Args:
            ready: Asked after each message, and after `wake_pump`. It must not wait.
            timeout: Seconds at most; None for ever.
        """
        self._transport.pump(ready, math.inf if timeout is None else timeout)

    def wake_pump(self) -> None:
        """Make the pumping thread check `ready` again."""
        self._transport.wake_pump()

    def labels_of(self, peer: int) -> frozenset[str]:
        """Return the labels of a peer; none before it has introduced itself."""
        session = self.sessions.get(peer)  # one that had joined may be gone by now
        who = None if session is None else session.peer
        return frozenset() if who is None else who.labels

    def wake(self) -> None:
        """Send what the sessions have to say, soon."""
        self._is_due = True
        self._transport.wake()

    def say(self, to: int | None = None) -> None:
        """Send what the sessions have to say, with `changed` held: a single word at once.

        It saves the way over the transport's thread, and that is most of what a word costs.

        Args:
            to: The only node that there is something to say to; else it may be any.
        """
        is_signal_handler, self._is_saying = self._is_saying, True
        if is_signal_handler:  # which has come between a word and the one before it
            self.wake()
            return
        try:
            links = self._table.of_peers
            for peer in links if to is None else links.keys() & {to}:
                self._say_word(links[peer], self.sessions[peer])
        finally:
            self._is_saying = False
        self.changed.notify_all()

    def _say_word(self, link: Link, session: Session) -> None:
        word, is_sent = None, False
        try:
            word = session.word(self._clock.now())
            is_sent = word is None or self._table.send(link, word)
        finally:
            if not is_sent:  # or it may be, if this is an interrupt
                session.say_again()
                self.wake()
        if word is None and session.has_words:
            self.wake()

    def wait_ready(self, timeout: float | None) -> None:
        """Block until every peer has introduced itself, or `stop_waiting` is called.

        Raises:
            DeadlineExceeded: Somebody did not in time; says who.
            AuthenticationError: Somebody has refused this node; says why.
        """
        with self.changed:
            in_time = Deadline.after(timeout, self._clock).wait(
                self.changed,
                lambda: self._refusals.is_refused or self._waits_no_more or not self._missing(),
            )
            missing = self._missing()
        self._refusals.check()
        if not in_time:
            raise self._refusals.timed_out(missing, timeout or 0.0)

    def stop_waiting(self) -> None:
        """Let `wait_ready` return, whoever is missing."""
        with self.changed:
            self._waits_no_more = True
            self.changed.notify_all()

    def _missing(self) -> list[int]:
        known = {peer for peer, session in self.sessions.items() if session.peer is not None}
        return sorted(self._spec.peers - known)

    def close(self, *, good_bye: bool, linger: float, owes: Callable[[], bool]) -> None:
        """Wait until the peers have what was sent, and exchange good-byes.

        A transport may drop what a peer has not read when it disconnects, so this node stays
        until the peers have answered its good-bye, which is the last thing that it sends.

        Args:
            good_bye: Whether to take leave.
            linger: Seconds to wait for a peer since it was last heard of.
            owes: Tells whether there is more to be sent than the sessions know.
        """
        with self.changed:
            for session in self.sessions.values():
                session.urge()
            self._isolation.settle()
            self._drain.begin(good_bye=good_bye, linger=linger, owes=owes)
        self.wake()
        with self.changed:
            while True:
                for peer in self._drain.ready:
                    self._say_good_bye(peer)
                if (rest_s := self._drain.rest_s()) <= 0.0:
                    break
                self._clock.wait(self.changed, rest_s)
            self._drain.report()

    @property
    def is_hurried(self) -> bool:
        """Whether this node is to leave at once."""
        return self._drain.is_cancelled

    def hurry(self) -> None:
        """Let `close` wait for no peer any more."""
        with self.changed:
            self._drain.cancel()
            self.changed.notify_all()

    def note_ended(self, peer: int, incarnation: int) -> None:
        """Note that the process of a peer has ended: `close` waits for that incarnation no more."""
        with self.changed:
            self._drain.note_ended(peer, incarnation)
            self.changed.notify_all()

    def settle(self) -> None:
        """Note that the job has ended: from now on this node may do without its peers."""
        with self.changed:
            self._isolation.settle()

    def end(self) -> None:
        """Note that there are no links any more: the transport is closed."""
        with self.changed:
            for session in self.sessions.values():
                session.close_link()
            self._update()

    def redial(self, peer: int, address: str) -> None:
        """Dial a peer at another address from now on; it is lost until it has answered there.

        Raises:
            ConfigError: This node does not dial it: it is dialled by it.
        """
        if peer not in self._spec.dials:
            raise ConfigError(
                f"Node {self._spec.node_id} dials the nodes {sorted(self._spec.dials)}, and not "
                f"node {peer}: that one must dial anew if it has moved."
            )
        with self.changed:
            self._moved[peer] = address
        self.wake()

    def admit(self, peer: int, *, lasting: Iterable[Encoded] = ()) -> bool:
        """Let a further node be a peer, and connect from now on.

        Args:
            peer: The node.
            lasting: Events that it is told of, which it has come too late for.

        Returns:
            Whether it was none before.
        """
        with self.changed:
            is_new = peer not in self.sessions
            if is_new:
                self._parted.discard(peer)
                self.sessions[peer] = session = Session(self._me, peer)
                for event in lasting:
                    session.post(event, lasting=True)
        self._transport.admit(peer)
        return is_new

    def dismiss(self, peer: int) -> None:
        """Count a node as a peer no more; only within a call of this sink."""
        with self.changed:
            session = self.sessions.get(peer)
            if session is None:
                return
            has_left, session.has_left = session.has_left, True  # so that no `emit` waits for it
            if (link := self._table.of_peers.get(peer)) is not None:
                if not has_left:  # else it waits for the answer to its good-bye
                    self._transport.drop(link)
                self._table.unbind(peer)
            self._moved.pop(peer, None)
            self._lost.discard(peer)
            if has_left:
                self._parted.add(peer)
            del self.sessions[peer]
            self._update()

    def reject(self, reason: str, link: Link | None = None) -> None:
        """Count a message that was dropped, and say so now and then.

        Args:
            reason: What was wrong with it.
            link: Where it came from; after too many from there the link is dropped as well.
        """
        self._dropped.add(reason, link)

    # -- what the transport says, on its thread ----------------------------------------------

    def on_up(self, link: Link, node_id: int) -> None:
        """Introduce this node on a link that it has dialled."""
        with self.changed:
            self._handshake.introduce(link, node_id)

    def on_message(self, link: Link, frames: list[Frame]) -> None:
        """Take a message: reject it, or hand on what it brings."""
        try:
            envelope = Envelope.from_frames(frames)
            arrivals = self._take(link, envelope)
        except CodecError as error:
            self.reject(str(error), link)
            self._look_at_version(link, version_of(frames))
            return
        for arrival in arrivals:
            if isinstance(arrival, Dropped):
                self.reject(arrival.reason, link if arrival.is_fault else None)
                continue
            if isinstance(arrival, Joined):
                self._lost.discard(envelope.src)
            try:
                self._on_arrival(envelope.src, arrival)
            except BaseException as error:  # a task's own listeners raise in the task
                if is_for_program(error):
                    raise
                logger.exception("a listener of node %d's router has raised", self._spec.node_id)

    def on_down(self, link: Link) -> None:
        """A dialled link has broken."""
        with self.changed:
            peer = self._table.peer_of(link)
            if peer is not None:
                self._table.unbind(peer)
            self._update()
        if peer is not None:
            self._note_lost(peer)

    def on_doubt(self) -> None:
        """Some peer that has dialled this node is gone: speaking to all of them tells which.

        A peer that this node has dialled and that has yet to greet it must hear nothing else: it
        would take that for the word by which this node says that it is ready.
        """
        with self.changed:
            gone = [
                peer
                for peer, link in self._table.of_peers.items()
                if (self.sessions[peer].is_open or self.sessions[peer].has_left)
                and not self._table.ping(peer, link)
            ]
            for peer in gone:
                self._table.unbind(peer)
            self._update()
        for peer in gone:
            self._note_lost(peer)

    def on_refused(self, node_id: int, reason: str) -> None:
        """A node that this one has dialled does not let it in."""
        with self.changed:
            self._handshake.note_refusal(node_id, reason)
            self._update()

    def on_rejected(self, reason: str, link: Link | None = None) -> None:
        """Something was dropped before it could be a message."""
        self.reject(reason, link)

    def on_tick(self) -> float:
        """Send what the sessions have to say, and look for peers that have fallen silent.

        There is a turn after each message, and mostly nothing to do: who has just been woken by
        the message waits for this thread to wait again.
        """
        now = self._clock.now()
        if now < self._next_turn_at and not self._is_due:
            return self._next_turn_at - now
        self._is_due = False  # before anything is looked at, so that nothing is missed
        self._on_tick()
        self._follow()
        with self.changed:
            wait_s = HEARTBEAT_S
            silent = []
            self._handshake.greet_again(now)
            for peer, link in self._table.of_peers.items():
                rest_s = self.sessions[peer].next_turn(now)
                if rest_s <= 0.0:
                    if not self._speak(peer, link, now):
                        silent.append(peer)
                    rest_s = self.sessions[peer].next_turn(now)
                wait_s = min(wait_s, rest_s)
            for peer in silent:  # over a new connection it may be heard again
                self._transport.drop(self._table.of_peers[peer])
                self._table.unbind(peer)
            if silent:
                self._update()
            self._next_turn_at = now + wait_s
            cut_off = self._isolation.look(now)
            self.changed.notify_all()
        for peer in silent:
            self._note_lost(peer)
        if cut_off is not None:
            self.on_cut_off(cut_off)
        return wait_s

    def _take(self, link: Link, envelope: Envelope) -> list[Arrival]:
        now = self._clock.now()
        owner = self._transport.owner(link)
        if owner is not None and owner != envelope.src:
            raise CodecError(f"Node {owner} wrote in the name of node {envelope.src}.")
        is_replaced = False
        with self.changed:
            session = self.sessions.get(envelope.src)
            if session is None and self._spec.growth and envelope.kind is Kind.HELLO:
                if self.on_unknown_node(envelope.src):
                    session = self.sessions.get(envelope.src)
                else:
                    self._handshake.refuse(
                        link, envelope.src, PLACE_GIVEN_UP, holder=NO_INCARNATION
                    )
            if envelope.src in self._parted and envelope.kind is not Kind.HELLO:
                return []  # said before it has heard the answer to its good-bye
            if session is None or envelope.dst != self._spec.node_id:
                raise CodecError(
                    f"Node {envelope.src} is no peer of node {self._spec.node_id}, or wrote "
                    f"to node {envelope.dst}."
                )
            arrivals: list[Arrival] = []
            if envelope.kind in (Kind.HELLO, Kind.WELCOME):
                was_open = session.is_open
                arrivals = self._handshake.greet(link, envelope, now)
                is_replaced = was_open
            elif envelope.kind is Kind.REFUSE:
                is_replaced = self._handshake.take_refusal(link, envelope, now)
            elif self._table.peer_of(link) != envelope.src:
                self._handshake.ask(link, envelope.src)
                reason = f"A message of node {envelope.src} came before its greeting."
                arrivals = [Dropped(reason, is_fault=False)]
            else:
                arrivals = session.take(envelope, now)
                if session.is_open:
                    self._next_turn_at = min(self._next_turn_at, now + session.next_turn(now))
                    self.changed.notify_all()
                    return arrivals
                if arrivals and session.has_left:
                    self._say_good_bye(envelope.src)
                    self._table.send(link, session.acknowledgement())
            self._update()
        if is_replaced:  # it was gone before this node has noticed
            self._note_lost(envelope.src)
        return arrivals

    # -- inside --------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Dial those anew that have moved."""
        with self.changed:
            moved, self._moved = self._moved, {}
            followed = [peer for peer in moved if peer in self._table.of_peers]
            for peer in followed:
                self._table.unbind(peer)
            if followed:
                self._update()
        for peer, address in moved.items():
            self._transport.redial(peer, address)
        for peer in followed:
            self._note_lost(peer)

    def _speak(self, peer: int, link: Link, now: float) -> bool:
        """Send all that a session has to say; tell whether its peer is there."""
        session = self.sessions[peer]
        for lane, envelope in session.outgoing(now):
            if not self._transport.send(link, lane, envelope.frames()):
                return False
            if envelope.kind is Kind.STATE:
                self.on_ctx_sent(peer, envelope.seq)
        if session.is_silent(now):  # or it is in the middle of a long word
            session.note_heard(self._transport.brought_at(link))
        return not session.is_silent(now)

    def _say_good_bye(self, peer: int) -> None:
        """Tell a peer once that this node leaves, or that it has heard that the peer does."""
        if (link := self._table.of_peers.get(peer)) is not None:
            self._table.send_once(link, self.sessions[peer].good_bye())

    def _look_at_version(self, link: Link, version: int | None) -> None:
        if version is not None and version != VERSION:
            with self.changed:
                self._handshake.take_foreign(link, version)
                self._update()

    def _update(self) -> None:
        """Let everyone who waits look again, this node's own thread too."""
        self._is_due = True
        sessions = self.sessions.values()
        self.is_active = any(session.is_open for session in sessions)
        self.has_audience = self._takes_more or any(
            s.peer is not None and not s.has_left for s in sessions
        )
        self.changed.notify_all()

    def _note_lost(self, peer: int) -> None:
        session = self.sessions.get(peer)
        if session is None or session.has_left or peer in self._lost:
            return
        self._lost.add(peer)
        self._on_lost(peer)
