"""The router of a node among processes: it connects the sessions, the transport and the tasks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout
from dataclasses import replace
from functools import partial
from typing import Any

from ding_lite.clock import SYSTEM_CLOCK, Clock, Deadline
from ding_lite.errors import (
    AuthenticationError,
    CodecError,
    ConfigError,
    DeadlineExceeded,
    TransportError,
)
from ding_lite.log import Throttle
from ding_lite.parallel.codec import MAX_META_BYTES, Encoded, decode, encode
from ding_lite.parallel.envelope import VERSION, Envelope, Kind, version_of
from ding_lite.parallel.rpc import Calls, Handler, describe
from ding_lite.parallel.session import (
    HEARTBEAT_S,
    Arrival,
    CallArrived,
    CtxArrived,
    EventArrived,
    Identity,
    Joined,
    Left,
    ReplyArrived,
    Session,
    encode_call,
    encode_event,
    encode_reply,
)
from ding_lite.parallel.shared_memory import domain
from ding_lite.parallel.shared_state import SharedReceiver, SharedSender, job_of, local_peers
from ding_lite.parallel.streams import SERVICE as STREAMS, Item, Streams
from ding_lite.parallel.topology import FIRST_UNCOUNTED_EPOCH, NodeSpec, neighbours
from ding_lite.parallel.transport.base import Frame, Lane, Link, Transport
from ding_lite.parallel.transport.zeromq import ZeroMQTransport
from ding_lite.runtime.concurrency import Workers
from ding_lite.runtime.inbox import Inbox, Listening, Receiver
from ding_lite.runtime.labels import check_patterns, matches, several
from ding_lite.runtime.meetings import MEET, PAIRED, Meetings
from ding_lite.runtime.router import FINISH, use_router

logger = logging.getLogger(__name__)

EMIT_TIMEOUT_S = 30.0
"""How long `emit` waits for a peer that does not keep up."""
FAREWELL_TIMEOUT_S = 1.0
"""How long `close` waits for the peers to answer its good-bye."""
FLUSH_TIMEOUT_S = 5.0
"""How long `close` waits for the peers to acknowledge what was emitted."""
NUM_WORKERS = 2
"""Threads that answer the calls of other nodes."""
_UNCHANGING = (type(None), bool, int, float, str, bytes)
_TEXTS = (str, bytes)
_KEY_ROOM = 8192


class NodeRouter:
    """A node's way to the other nodes of its job, which run in other processes.

    Args:
        spec: Who this node is and whom it is connected to.
        transport: What moves the messages; ZeroMQ by default.
        clock: What silence and waits are measured by.
    """

    def __init__(
        self,
        spec: NodeSpec,
        *,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._inbox = Inbox()
        self._calls = Calls()
        self._workers = Workers(NUM_WORKERS)
        self._answers: dict[tuple[int, int], Future[Any]] = {}
        self._streams = Streams(
            lambda node, stream, body: self._ask(node, STREAMS, body), self._matching, clock
        )
        self.register(STREAMS, self._streams.arrive)
        self.meetings = Meetings()
        self.register(MEET, self.meetings.meet)
        self.register(PAIRED, self.meetings.paired)
        self._throttle = Throttle(logger, clock)
        self._changed = threading.Condition()
        me = Identity(spec.node_id, spec.epoch, spec.num_nodes, spec.labels)
        near = replace(me, memory=domain())
        nearby = local_peers(spec) if near.memory else frozenset()
        self._sessions = {
            peer: Session(near if peer in nearby else me, peer) for peer in sorted(spec.neighbours)
        }
        self._shared_sender = SharedSender(job_of(spec), len(nearby))
        self._shared_receiver = SharedReceiver(self._deliver_ctx, self._reject)
        self._links: dict[int, Link] = {}
        self._peers_of_links: dict[Link, int] = {}
        self._lost: set[int] = set()
        self._refusals: dict[int, str] = {}
        self._io_thread = -1
        self._is_closing = False
        self._left_behind: set[int] = set()
        self.num_rejected = 0
        """Messages that were dropped because they were none, or not for this node."""
        self.is_active = False
        """Whether anybody is connected."""

        self._transport = transport or ZeroMQTransport(
            spec.node_id, peers=spec.neighbours, key_file=spec.key_file
        )
        self.address: str | None = None
        """Where others dial this node, if they do."""
        try:
            if spec.listen is not None:
                self.address = self._transport.listen(spec.listen)
            for peer, address in spec.dials.items():
                self._transport.dial(peer, address)
        except BaseException:
            self._end()
            raise
        self._transport.start(self)

    # -- what a task may ask and say -------------------------------------------------------

    @property
    def node_id(self) -> int:
        """This node's number in the job, from 0."""
        return self._spec.node_id

    @property
    def labels(self) -> frozenset[str]:
        """The labels of this node."""
        return self._spec.labels

    @property
    def peers(self) -> tuple[int, ...]:
        """The ids of the nodes connected to this one."""
        with self._changed:
            return tuple(peer for peer, session in self._sessions.items() if session.is_open)

    @property
    def world(self) -> tuple[frozenset[str], ...]:
        """The labels of every node of the job; none of a node that this one does not know."""
        if self._spec.world:
            return self._spec.world
        with self._changed:
            known = [s.peer for s in self._sessions.values() if s.peer is not None]
        of_node = {peer.node_id: peer.labels for peer in known} | {self.node_id: self.labels}
        said = [peer.num_nodes for peer in known] + [max(of_node) + 1]
        num_nodes = self._spec.num_nodes or max(said)
        return tuple(of_node.get(node, frozenset()) for node in range(num_nodes))

    def meeting_point(self, members: Sequence[int]) -> int:
        """Return a node that all these nodes can call, the same one on each of them.

        Raises:
            ConfigError: There is none.
        """
        candidates: list[int] = [*members, *range(len(self.world))]
        for node in candidates:
            if set(members) <= neighbours(self._spec.edges, node) | {node}:
                return node
        raise ConfigError(
            f"The nodes {[*members]} share no node that all of them are connected to, so they "
            f"cannot meet. Add edges, or use a mesh or a star."
        )

    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until every neighbour has introduced itself.

        Raises:
            DeadlineExceeded: Somebody did not in time; says who.
            AuthenticationError: Somebody has refused this node; says why.
        """
        timeout = self._spec.startup_timeout if timeout is None else timeout
        with self._changed:
            in_time = Deadline.after(timeout, self._clock).wait(
                self._changed,
                lambda: (
                    bool(self._refusals) or all(s.peer is not None for s in self._sessions.values())
                ),
            )
            refusals = dict(self._refusals)
            missing = [peer for peer, s in self._sessions.items() if s.peer is None]
        for peer, reason in refusals.items():
            raise AuthenticationError(
                f"Node {peer} has refused node {self.node_id}: {reason} All nodes of a job need "
                f"the same key, the same number of nodes and the same version of ding_lite."
            )
        if not in_time:
            who = ", ".join(map(self._place_of, missing))
            of_all = f" of {self._spec.num_nodes}" if self._spec.num_nodes else ""
            raise DeadlineExceeded(
                f"Node {self.node_id} has waited {timeout:g} s for node {who}{of_all}. Were all "
                f"nodes started, with the same addresses? A slow start needs a longer "
                f"`startup_timeout`."
            )

    def _place_of(self, peer: int) -> str:
        address = self._spec.dials.get(peer, "")
        return f"{peer} ({address})" if address.startswith("tcp") else f"{peer}"

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Send an event to every connected node: exactly once, in order.

        Raises:
            CodecError: An argument cannot travel.
            TransportError: A peer has not kept up for too long.
        """
        encoded = encode_event(event, args, kwargs)
        with self._changed:
            for session in self._sessions.values():
                if not session.has_left:
                    self._wait_for_room(session, event)
                    session.post(encoded, lasting=event == FINISH)
        self._transport.wake()

    def publish_ctx(self, values: Mapping[str, Any], *, to: Iterable[str] | None = None) -> None:
        """Offer ctx values to the connected nodes that `to` matches; the newest wins.

        What cannot be encoded stays home, with one warning a key.
        """
        patterns = None if to is None else several(to)
        slots = self._encode(values)
        with self._changed:
            for session in self._sessions.values():
                if patterns is None or matches(_labels_of(session), patterns):
                    session.offer(slots)
        self._transport.wake()

    def on(self, event: str, fn: Callable[..., object]) -> None:
        """Call `fn` with the arguments of each such event, on the router's own thread."""
        self.join(Listening(event, fn))

    def register(self, name: str, fn: Handler) -> None:
        """Answer calls of this name with `fn`, on a thread of the router's.

        Raises:
            ConfigError: The name is taken, or `fn` cannot be called.
        """
        self._calls.register(name, fn)

    def call(
        self, node: int, name: str, *args: Any, timeout: float | None = 30.0, **kwargs: Any
    ) -> Any:
        """Ask another node, and wait for its answer.

        Args:
            node: Its id; this node's own is answered here.
            name: What its handler is registered as.
            *args: What the handler is called with.
            timeout: Seconds; `None` waits for ever.
            **kwargs: Likewise.

        Raises:
            RemoteError: The handler has raised; carries its traceback.
            PeerLost: The node is not connected, or was lost before it answered.
            DeadlineExceeded: No answer came in time.
            CodecError: An argument cannot travel.
        """
        answer = self.ask(node, name, *args, **kwargs)
        try:
            return answer.result(timeout)
        except FutureTimeout:
            if answer.done():  # the handler's own
                raise
            self._calls.forget(answer)
            raise DeadlineExceeded(
                f"Node {node} has not answered `{name}` within {timeout:g} s. Is it busy or "
                f"hung? A call that takes long needs a longer `timeout`."
            ) from None

    def ask(self, node: int, name: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Ask another node without waiting; the future gets the answer, or why there is none.

        Raises:
            CodecError: An argument cannot travel.
        """
        if node == self.node_id:
            return self._calls.handle(name, args, kwargs)
        return self._ask(node, name, encode_call(name, args, kwargs))

    def send(
        self,
        stream: str,
        tree: Any,
        *,
        to: str | Iterable[str],
        in_flight: int = 2,
        timeout: float | None = 60.0,
    ) -> None:
        """Send an item to exactly one of the nodes that label patterns match.

        It waits until one of them has room. What a node has not taken when it is lost goes to
        another one.

        Args:
            stream: The stream's name.
            tree: The item; a snapshot is sent, so it may change at once.
            to: Patterns of the labels of the receivers.
            in_flight: Items of this stream that each receiver may have not yet taken. More
                hides more delay and costs more memory; 2 is usual.
            timeout: Seconds to wait for room; `None` waits for ever.

        Raises:
            DeadlineExceeded: No receiver had room in time.
            CodecError: The item cannot travel.
        """
        body = encode_call(STREAMS, (self.node_id, stream, tree), {})
        self._streams.send(stream, body, check_patterns(to), in_flight=in_flight, timeout=timeout)

    def receive(self, stream: str, *, timeout: float | None = 60.0) -> Item:
        """Wait for the next item of a stream that other nodes have sent here.

        Raises:
            DeadlineExceeded: None came in time.
        """
        return self._streams.receive(stream, timeout)

    def join(self, receiver: Receiver) -> Callable[[], None]:
        """Hand what arrives to a receiver from now on; the returned function ends that."""
        return self._inbox.join(receiver)

    def close(self, *, good_bye: bool = True) -> None:
        """Wait until the peers have what was emitted and answered, exchange good-byes, and end.

        A transport may drop what a peer has not read when it disconnects, so this node stays
        until the peers have answered its good-bye, which is the last thing that it sends.

        Args:
            good_bye: Whether to take leave; the peers count a node as lost that does not.
        """
        with self._changed:
            Deadline.after(FLUSH_TIMEOUT_S, self._clock).wait(
                self._changed,
                lambda: (
                    all(s.is_flushed or not s.is_open for s in self._sessions.values())
                    and not any(answer.done() for answer in self._answers.values())
                ),
            )
            self._is_closing = good_bye
        self._transport.wake()
        with self._changed:
            Deadline.after(FAREWELL_TIMEOUT_S if good_bye else 0.0, self._clock).wait(
                self._changed, lambda: not any(s.is_open for s in self._sessions.values())
            )
        self._end()
        self.is_active = False

    def _end(self) -> None:
        self._transport.close()
        self._shared_receiver.close()
        self._shared_sender.close()
        self._workers.close()

    def _wait_for_room(self, session: Session, event: str) -> None:
        if session.has_room or threading.get_ident() == self._io_thread:
            return  # the transport's own thread must not wait for itself
        self._transport.wake()
        deadline = Deadline.after(EMIT_TIMEOUT_S, self._clock)
        if not deadline.wait(self._changed, lambda: session.has_room or session.has_left):
            raise TransportError(
                f"Node {session.peer_id} has not acknowledged earlier events for "
                f"{EMIT_TIMEOUT_S:g} s, and no more may wait for it: event `{event}` was not sent. "
                f"Is that node hung? Emit less often, or put what only needs its newest value on "
                f"the ctx."
            )

    def _encode(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make of each value what may wait in a slot: itself if it never changes, or its bytes."""
        slots: dict[str, Any] = {}
        for key, value in values.items():
            if type(value) in _UNCHANGING and (type(value) not in _TEXTS or len(value) < 4096):
                slots[key] = value
                continue
            try:
                encoded = encode(value, borrow=True, name=f"ctx[{key!r}]")
                if len(encoded.meta) > MAX_META_BYTES - _KEY_ROOM:
                    raise CodecError(
                        f"its structure takes {len(encoded.meta)} bytes, and a message has room "
                        f"for {MAX_META_BYTES}. Put numbers into arrays."
                    )
                slots[key] = self._shared_sender.keep(key, encoded)
            except CodecError as error:
                self._throttle.once(
                    logging.WARNING,
                    f"stays home {key}",
                    "`ctx.%s` stays on node %d: %s `task.share` chooses what travels.",
                    key,
                    self.node_id,
                    error,
                )
        return slots

    # -- what the transport says, on its thread --------------------------------------------

    def on_up(self, link: Link, node_id: int) -> None:
        """Introduce this node on a link that it has dialled."""
        with self._changed:
            self._bind(link, node_id)
            self._transport.send(
                link, Lane.CONTROL, self._sessions[node_id].greeting(Kind.HELLO).frames()
            )

    def on_message(self, link: Link, frames: list[Frame]) -> None:
        """Take a message: reject it, or hand on what it brings."""
        try:
            envelope = Envelope.from_frames(frames)
            arrivals = self._take(link, envelope)
        except CodecError as error:
            self._reject(str(error))
            self._check_version(link, version_of(frames))
            return
        for arrival in arrivals:
            try:
                self._deliver(envelope.src, arrival)
            except Exception:  # this thread must live on; a task's own listeners raise in the task
                logger.exception("a listener of node %d's router has raised", self.node_id)

    def _take(self, link: Link, envelope: Envelope) -> list[Arrival]:
        now = self._clock.now()
        owner = self._transport.owner(link)
        if owner is not None and owner != envelope.src:
            raise CodecError(f"Node {owner} wrote in the name of node {envelope.src}.")
        with self._changed:
            session = self._sessions.get(envelope.src)
            if session is None or envelope.dst != self.node_id:
                raise CodecError(
                    f"Node {envelope.src} is no neighbour of node {self.node_id}, or wrote to "
                    f"node {envelope.dst}."
                )
            if envelope.kind in (Kind.HELLO, Kind.WELCOME):
                arrivals = self._greet(link, session, envelope, now)
            elif envelope.kind is Kind.REFUSE:
                self._take_refusal(link, session, envelope)
                arrivals = []
            elif self._peers_of_links.get(link) != envelope.src:
                self._ask_for_greeting(link, session)
                arrivals = []
            else:
                arrivals = session.take(envelope, now)
                if session.has_left:
                    self._say_good_bye(envelope.src)
            self._update()
        return arrivals

    def on_down(self, link: Link) -> None:
        """A dialled link has broken."""
        with self._changed:
            peer = self._peers_of_links.get(link)
            if peer is not None:
                self._unbind(peer)
            self._update()
        if peer is not None:
            self._note_lost(peer)

    def on_doubt(self) -> None:
        """Some peer that has dialled this node is gone: speaking to all of them tells which."""
        with self._changed:
            gone = [peer for peer, link in self._links.items() if not self._ping(peer, link)]
            for peer in gone:
                self._unbind(peer)
            self._update()
        for peer in gone:
            self._note_lost(peer)

    def on_refused(self, node_id: int, reason: str) -> None:
        """A node that this one has dialled does not let it in."""
        with self._changed:
            self._note_refusal(node_id, reason)
            self._update()

    def on_rejected(self, reason: str) -> None:
        """Something was dropped before it could be a message."""
        self._reject(reason)

    def on_turn(self) -> float:
        """Send what the sessions have to say, and look for peers that have fallen silent."""
        now = self._clock.now()
        self._io_thread = threading.get_ident()
        with self._changed:
            if self._is_closing:
                for peer in list(self._links):
                    if self._sessions[peer].is_open:
                        self._say_good_bye(peer)
            lost = [peer for peer, link in self._links.items() if not self._speak(peer, link, now)]
            for peer in lost:
                self._unbind(peer)
            self._update()
            wait_s = min((s.next_turn(now) for s in self._sessions.values()), default=HEARTBEAT_S)
        for peer in lost:
            self._note_lost(peer)
        return wait_s

    # -- inside ----------------------------------------------------------------------------

    def _speak(self, peer: int, link: Link, now: float) -> bool:
        """Send all that a session has to say; tell whether its peer is there."""
        session = self._sessions[peer]
        for lane, envelope in session.outgoing(now):
            if not self._transport.send(link, lane, envelope.frames()):
                return False
        return not session.is_silent(now)

    def _ping(self, peer: int, link: Link) -> bool:
        return self._transport.send(link, Lane.CONTROL, self._sessions[peer].ping().frames())

    def _say_good_bye(self, peer: int) -> None:
        """Tell a peer once that this node leaves, or that it has heard that the peer does."""
        if peer in self._links and peer not in self._left_behind:
            self._left_behind.add(peer)
            farewell = self._sessions[peer].good_bye()
            self._transport.send(self._links[peer], Lane.CONTROL, farewell.frames())

    def _ask_for_greeting(self, link: Link, session: Session) -> None:
        """Answer somebody who speaks before a greeting: this node may have been restarted."""
        refusal = session.greeting(Kind.REFUSE)
        self._transport.send(link, Lane.CONTROL, refusal.frames())

    def _greet(self, link: Link, session: Session, envelope: Envelope, now: float) -> list[Arrival]:
        """Take a greeting and answer it, or say why not: its sender waits for the answer."""
        try:
            self._check_not_doubled(link, session, envelope)
            arrivals = session.greet(envelope, now)
        except CodecError as error:
            if envelope.kind is Kind.HELLO:
                self._turn_away(link, envelope.src, str(error))
            raise
        self._bind(link, envelope.src)
        self._refusals.pop(envelope.src, None)
        if envelope.kind is Kind.HELLO:
            welcome = session.greeting(Kind.WELCOME)
            self._transport.send(link, Lane.CONTROL, welcome.frames())
        return arrivals

    def _check_not_doubled(self, link: Link, session: Session, envelope: Envelope) -> None:
        """Refuse a second process of the same node id, unless it is a later life of the node."""
        present = self._links.get(envelope.src, link)
        known = session.peer
        if present == link or known is None or not session.is_open:
            return
        is_later_life = known.epoch < envelope.epoch < FIRST_UNCOUNTED_EPOCH
        if not is_later_life and self._ping(envelope.src, present):
            raise CodecError(
                f"there is a node {envelope.src} already. Give each node an id of its own."
            )

    def _turn_away(self, link: Link, node_id: int, reason: str) -> None:
        refusal = Envelope(
            kind=Kind.REFUSE,
            src=self.node_id,
            dst=node_id,
            epoch=self._spec.epoch,
            meta=encode(reason).meta,
        )
        self._transport.send(link, Lane.CONTROL, refusal.frames())

    def _take_refusal(self, link: Link, session: Session, envelope: Envelope) -> None:
        """Greet a node that asks for it, or note why it wants nothing of this one."""
        body = decode(envelope.meta, envelope.buffers)
        if not isinstance(body, str):
            greeting = session.greeting(Kind.HELLO)
            self._transport.send(link, Lane.CONTROL, greeting.frames())
        elif self._peers_of_links.get(link) == envelope.src and not session.is_open:
            self._note_refusal(envelope.src, body)

    def _check_version(self, link: Link, version: int | None) -> None:
        """Let neither side wait for an answer where each speaks another version."""
        if version is None or version == VERSION:
            return
        with self._changed:
            peer = self._peers_of_links.get(link)
            if peer is None:
                self._turn_away(link, 0, "")  # the version in the header says it all
            elif not self._sessions[peer].is_open:
                self._note_refusal(peer, f"it speaks version {version} of the protocol.")
                self._update()

    def _note_refusal(self, peer: int, reason: str) -> None:
        if self._sessions[peer].peer is None:
            self._refusals[peer] = reason
        self._throttle.every(
            10.0, logging.WARNING, f"refused {peer}", "node %d refused this one: %s", peer, reason
        )

    def _bind(self, link: Link, peer: int) -> None:
        self._unlink(peer)
        self._left_behind.discard(peer)
        self._links[peer] = link
        self._peers_of_links[link] = peer

    def _unlink(self, peer: int) -> None:
        if (old := self._links.pop(peer, None)) is not None:
            del self._peers_of_links[old]
            self._transport.forget(old)

    def _unbind(self, peer: int) -> None:
        self._unlink(peer)
        self._sessions[peer].close_link()

    def _update(self) -> None:
        """Let everyone who waits look again."""
        self.is_active = any(session.is_open for session in self._sessions.values())
        self._changed.notify_all()

    def _note_lost(self, peer: int) -> None:
        if self._sessions[peer].has_left or peer in self._lost:
            return
        self._lost.add(peer)
        self._shared_receiver.forget(peer)
        self._calls.fail(peer)
        logger.warning("node %d lost node %d", self.node_id, peer)
        self._inbox.put_event(peer, "node_lost", (peer,), {})

    def _deliver(self, peer: int, arrival: Arrival) -> None:
        if isinstance(arrival, Joined | Left):
            self._streams.peers_changed()
        if isinstance(arrival, Left):
            self._shared_receiver.forget(peer)
        if isinstance(arrival, EventArrived):
            self._inbox.put_event(peer, arrival.event, arrival.args, arrival.kwargs)
        elif isinstance(arrival, CtxArrived):
            if arrival.owes_credit or self._shared_receiver.is_busy:
                self._shared_receiver.put(peer, arrival.values, arrival.owes_credit)
            else:
                self._inbox.put_ctx(peer, arrival.values)
        elif isinstance(arrival, ReplyArrived):
            self._calls.settle(peer, arrival.number, arrival.ok, arrival.value)
        elif isinstance(arrival, CallArrived):
            self._workers.submit(partial(self._answer, peer, arrival))
        elif isinstance(arrival, Joined) and peer in self._lost:
            self._lost.discard(peer)
            self._inbox.put_event(peer, "node_joined", (peer,), {})

    def _deliver_ctx(self, peer: int, values: dict[str, Any], owes_credit: int) -> None:
        """Hand on values that had to be read from a segment, on the thread that has done so."""
        try:
            self._inbox.put_ctx(peer, values)
        finally:
            if owes_credit:
                with self._changed:
                    self._sessions[peer].credit(owes_credit)
                self._transport.wake()

    def _ask(self, node: int, name: str, request: Encoded) -> Future[Any]:
        number, answer = self._calls.begin(node)
        with self._changed:
            session = self._sessions.get(node)
            if session is None or not session.is_open:
                self._calls.refuse(
                    number,
                    f"Node {node} cannot be asked for `{name}`: node {self.node_id} is not "
                    f"connected to it. Connected are: {[*self._links] or 'none'}.",
                )
                return answer
            session.call(number, request)
        self._transport.wake()
        return answer

    def _matching(self, patterns: Iterable[str]) -> list[int]:
        """Return the connected nodes whose labels match."""
        with self._changed:
            sessions = [session for session in self._sessions.values() if session.is_open]
        return [s.peer_id for s in sessions if matches(_labels_of(s), patterns)]

    def _answer(self, peer: int, call: CallArrived) -> None:
        with use_router(self):
            answer = self._calls.handle(call.name, call.args, call.kwargs)
        with self._changed:
            self._answers[peer, call.number] = answer
        answer.add_done_callback(lambda done: self._reply(peer, call.number, done))

    def _reply(self, peer: int, number: int, answer: Future[Any]) -> None:
        error = answer.exception()
        try:
            body = encode_reply(True, answer.result()) if error is None else None
        except CodecError as unsendable:
            error, body = unsendable, None
        if error is not None or body is None:
            body = encode_reply(False, describe(error or RuntimeError("no answer")))
        with self._changed:
            self._sessions[peer].reply(number, body)
            del self._answers[peer, number]
        self._transport.wake()

    def _reject(self, reason: str) -> None:
        self.num_rejected += 1
        self._throttle.every(
            10.0,
            logging.WARNING,
            "rejected",  # not the reason: who sends rubbish would fill the memory with reasons
            "dropped a message (%d in all): %s",
            self.num_rejected,
            reason,
        )


def _labels_of(session: Session) -> frozenset[str]:
    return frozenset() if session.peer is None else session.peer.labels
