"""The router of a node among processes: what its program may say to the other nodes, and hears."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout
from functools import partial
from typing import Any

from ding_lite.clock import SYSTEM_CLOCK, Clock, Deadline
from ding_lite.errors import CodecError, ConfigError, DeadlineExceeded, TransportError
from ding_lite.log import Throttle
from ding_lite.parallel.codec import MAX_META_BYTES, Encoded, decode, encode
from ding_lite.parallel.drawing import Drawing
from ding_lite.parallel.links import Links
from ding_lite.parallel.messages import (
    Arrival,
    CallArrived,
    CtxArrived,
    EventArrived,
    Joined,
    Left,
    ReplyArrived,
    encode_call,
    encode_event,
)
from ding_lite.parallel.metrics import State
from ding_lite.parallel.reporter import Reporter
from ding_lite.parallel.rpc import Answers, Calls, EarlyCalls, Handler
from ding_lite.parallel.session import Session
from ding_lite.parallel.shared_memory import Published, domain
from ding_lite.parallel.shared_state import SharedReceiver, SharedSender, job_of, local_peers
from ding_lite.parallel.topology import NodeSpec, neighbours
from ding_lite.parallel.transport.base import Transport
from ding_lite.parallel.transport.zeromq import ZeroMQTransport
from ding_lite.runtime.concurrency import Workers
from ding_lite.runtime.inbox import Inbox, Listening, Receiver
from ding_lite.runtime.labels import check_patterns, matches, several
from ding_lite.runtime.meetings import MEET, PAIRED, Meetings
from ding_lite.runtime.router import FINISH, use_router
from ding_lite.runtime.streams import Item, Parcel, Streams, Until
from ding_lite.runtime.watch import Watch
from ding_lite.settings import check_all, whole

logger = logging.getLogger(__name__)

EMIT_TIMEOUT_S = 30.0
"""How long `emit` waits for a peer that does not keep up."""
NUM_WORKERS = 2
"""Threads that answer the calls of other nodes."""
_ITEM = "ding_lite.item"
"""The name under which nodes call each other with an item of a stream."""
_WITHDRAW = "ding_lite.withdraw"
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
        self._throttle = Throttle(logger, clock)
        self._inbox = Inbox()
        self._calls = Calls()
        self._early = EarlyCalls(clock)
        self._answers = Answers(self._reply)
        self._workers = Workers(NUM_WORKERS)
        self._streams = Streams(self._carry, self._withdraw, self._receivers, clock)
        self._of_streams: dict[str, Handler] = {
            _ITEM: self._streams.arrive,
            _WITHDRAW: self._streams.withdraw,
        }
        self.meetings = Meetings()
        self.register(MEET, self.meetings.meet)
        self.register(PAIRED, self.meetings.paired)
        self._missed: set[int] = set()
        self._published: dict[str, Any] = {}
        self.traced = Drawing(spec, self._epoch_of)
        """What this node has for a time line of its messages."""

        self._transport = transport or ZeroMQTransport(
            spec.node_id, peers=spec.neighbours, key_file=spec.key_file
        )
        memory = domain()
        nearby = local_peers(spec) if memory else frozenset()
        self._shared_sender = SharedSender(job_of(spec), len(nearby))
        self._links = Links(
            spec,
            self._transport,
            clock,
            nearby=nearby,
            memory=memory,
            on_arrival=self._deliver,
            on_lost=self._note_lost,
            on_turn=self._turn,
        )
        self._links.on_ctx_sent = self.traced.ctx_sent
        self._reporter = Reporter(spec, self._links, self._inbox, self._loads, clock)
        self._shared_receiver = SharedReceiver(self._deliver_ctx, self._links.reject)
        try:
            self._links.start()
        except BaseException:
            self._end("failed")
            raise

    # -- who is there ------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """This node's number in the job, from 0."""
        return self._spec.node_id

    @property
    def labels(self) -> frozenset[str]:
        """The labels of this node."""
        return self._spec.labels

    @property
    def address(self) -> str | None:
        """Where others dial this node, if they do."""
        return self._links.address

    @property
    def is_active(self) -> bool:
        """Whether anybody is connected."""
        return self._links.is_active

    @property
    def has_audience(self) -> bool:
        """Whether anybody is connected, or was lost and may come back."""
        return self._links.has_audience

    @property
    def peers(self) -> tuple[int, ...]:
        """The ids of the nodes connected to this one."""
        return self._links.connected

    @property
    def num_rejected(self) -> int:
        """Messages that were dropped because they were none, or not for this node."""
        return self._links.num_rejected

    @property
    def world(self) -> tuple[frozenset[str], ...]:
        """The labels of every node of the job; none of a node that this one does not know."""
        if self._spec.world:
            return self._spec.world
        with self._links.changed:
            known = [s.peer for s in self._links.sessions.values() if s.peer is not None]
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
        self._links.wait_ready(self._spec.startup_timeout if timeout is None else timeout)

    # -- events and the ctx ------------------------------------------------------------------

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Send an event to every connected node: exactly once, in order.

        Raises:
            CodecError: An argument cannot travel.
            TransportError: A peer has not kept up for too long.
        """
        began_ns, sent = self.traced.now(), []
        encoded = encode_event(event, args, kwargs)
        with self._links.changed:
            for peer, session in self._links.sessions.items():
                if not session.has_left:
                    self._wait_for_room(session, event)
                    at_ns = self.traced.now()
                    sent.append((peer, session.post(encoded, lasting=event == FINISH), at_ns))
            self._links.say()
        self.traced.emitted(event, began_ns, sent)

    def publish_ctx(self, values: Mapping[str, Any], *, to: Iterable[str] | None = None) -> None:
        """Offer ctx values to the connected nodes that `to` matches; the newest wins.

        What cannot be encoded stays home, with one warning a key.
        """
        began_ns, peers = self.traced.now(), []
        patterns = None if to is None else several(to)
        slots = self._encode(values)
        self._published |= slots
        with self._links.changed:
            for peer, session in self._links.sessions.items():
                if patterns is None or matches(self._links.labels_of(peer), patterns):
                    session.offer(slots)
                    peers.append(peer)
            self.traced.published(began_ns, peers)
        self._links.wake()

    def published(self, key: str) -> Any:
        """Return what this node has offered last under a key; None where nothing was.

        Tensors are copies. Arrays may only be read, and stay as they are.
        """
        slot = self._published.get(key)
        value = slot.encoded if isinstance(slot, Published) else slot
        return decode(value.meta, value.buffers) if isinstance(value, Encoded) else value

    def on(self, event: str, fn: Callable[..., object]) -> None:
        """Call `fn` with the arguments of each such event, on the router's own thread."""
        self.join(Listening(event, fn))

    def join(self, receiver: Receiver) -> Callable[[], None]:
        """Hand what arrives to a receiver from now on; the returned function ends that."""
        return self._inbox.join(receiver)

    def watch(self, *keys: str) -> Watch:
        """Show ctx values of these keys as they come; what came for the first task is shown too."""
        return self._inbox.watch(*keys)

    def _wait_for_room(self, session: Session, event: str) -> None:
        if session.has_room or self._links.on_own_thread:
            return
        self._links.wake()
        deadline = Deadline.after(EMIT_TIMEOUT_S, self._clock)
        if not deadline.wait(self._links.changed, lambda: session.has_room or session.has_left):
            raise TransportError(
                f"Node {session.peer_id} has not acknowledged earlier events for "
                f"{EMIT_TIMEOUT_S:g} s, and no more may wait for it: event `{event}` was not sent. "
                f"Is that node hung? Emit less often, or put what only needs its newest value on "
                f"the ctx."
            )

    # -- calls -------------------------------------------------------------------------------

    def register(self, name: str, fn: Handler, *, quick: bool = False) -> None:
        """Answer calls of this name with `fn`, on a thread of the router's.

        A call that comes up to 5 s before its handler waits for it.

        Args:
            name: What callers ask for.
            fn: Takes their arguments.
            quick: It takes below a millisecond and never waits: so it runs on the thread that
                reads messages, and a node that is busy answers earlier by two changes of thread.

        Raises:
            ConfigError: The name is taken, or `fn` cannot be called.
        """
        self._calls.register(name, fn, quick=quick)
        self._start(self._early.take(name))

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

    def _ask(self, node: int, name: str, request: Encoded) -> Future[Any]:
        began_ns = self.traced.now()
        number, answer = self._calls.begin(node)
        with self._links.changed:
            session = self._links.sessions.get(node)
            if session is not None and session.is_open:
                session.call(number, request)
                self.traced.asked(name, began_ns, number)
                self._links.say()
            else:
                session = None
        if session is None:
            self._calls.refuse(
                number,
                f"Node {node} cannot be asked for `{name}`: node {self.node_id} is not connected "
                f"to it. Connected are: {[*self.peers] or 'none'}.",
            )
        return answer

    def _start(self, calls: Iterable[tuple[int, CallArrived]]) -> None:
        for peer, call in calls:
            self._workers.submit(partial(self._answer, peer, call))

    def _answer(self, peer: int, call: CallArrived) -> None:
        began_ns = self.traced.now()
        with use_router(self):
            answer = self._calls.handle(call.name, call.args, call.kwargs)
        self.traced.answered(peer, call, began_ns)
        self._answers.give(peer, call.number, answer)

    def _reply(self, peer: int, number: int, body: Encoded) -> None:
        with self._links.changed:
            self._links.sessions[peer].reply(number, body)
            self._links.say()

    # -- streams -----------------------------------------------------------------------------

    def send(
        self,
        stream: str,
        tree: Any,
        *,
        to: str | Iterable[str],
        in_flight: int = 2,
        timeout: float | None = 60.0,
        until: Until | None = None,
    ) -> bool:
        """Send an item to exactly one of the nodes that label patterns match.

        It waits until one of them has room. What a node has not taken when it is lost goes to
        another one. This node is a receiver too if its own labels match.

        Args:
            stream: The stream's name.
            tree: The item; a snapshot is sent, so it may change at once.
            to: Patterns of the labels of the receivers.
            in_flight: Items of this stream that each receiver may have not yet taken. More
                hides more delay and costs more memory; 2 is usual.
            timeout: Seconds to wait for room; `None` waits for ever.
            until: Ends the wait when it says so; asked again at each `wake`.

        Returns:
            Whether the item was sent; False where `until` has ended the wait.

        Raises:
            DeadlineExceeded: No receiver had room in time.
            CodecError: The item cannot travel.
        """
        check_all(whole(1, in_flight=in_flight))
        began_ns, number, at_ns = self.traced.now(), 0, 0

        def write(own_number: int, oldest: int) -> Encoded:
            nonlocal number, at_ns
            number, at_ns = own_number, self.traced.now()
            return encode_call(_ITEM, (self._spec.epoch, stream, number, oldest, tree), {})

        is_sent = self._streams.send(
            stream,
            write,
            check_patterns(to),
            in_flight=in_flight,
            timeout=timeout,
            until=until,
        )
        self.traced.item_sent(stream, began_ns, number, at_ns)
        return is_sent

    def receive(
        self, stream: str, *, timeout: float | None = 60.0, until: Until | None = None
    ) -> Item | None:
        """Wait for the next item of a stream that nodes have sent here.

        Args:
            stream: The stream's name.
            timeout: Seconds; `None` waits for ever.
            until: Ends the wait when it says so; asked again at each `wake`.

        Returns:
            The item and who has sent it; None where `until` has ended the wait.

        Raises:
            DeadlineExceeded: None came in time.
        """
        return self._streams.receive(stream, timeout=timeout, until=until)

    def wake(self) -> None:
        """Let whoever waits to send, to receive or for what it watches ask its `until` again."""
        self._streams.wake()
        self._inbox.wake()

    def _carry(self, node: int, parcel: Parcel) -> Future[Any]:
        if node != self.node_id:
            return self._ask(node, _ITEM, parcel.body)
        _, _, *args = decode(parcel.body.meta, parcel.body.buffers)
        return self._calls.guard(self._streams.arrive, (node, *args), {})

    def _withdraw(self, node: int, numbers: Sequence[int]) -> Future[Any]:
        return self._ask(
            node, _WITHDRAW, encode_call(_WITHDRAW, (self._spec.epoch, [*numbers]), {})
        )

    def _receivers(self, patterns: Iterable[str]) -> list[int]:
        """Return the nodes at hand whose labels match."""
        found = [self.node_id] if matches(self.labels, patterns) else []
        return found + [
            peer for peer in self.peers if matches(self._links.labels_of(peer), patterns)
        ]

    # -- what arrives, on the transport's thread -----------------------------------------------

    def _deliver(self, peer: int, arrival: Arrival) -> None:
        began_ns = self.traced.now()
        if isinstance(arrival, EventArrived):
            event = self.traced.event_came(peer, arrival, began_ns)
            self._inbox.put_event(peer, event, arrival.args, arrival.kwargs)
        elif isinstance(arrival, CtxArrived):
            self.traced.ctx_came(peer, arrival, began_ns)
            if arrival.owes_credit or self._shared_receiver.is_busy:
                self._shared_receiver.put(peer, arrival.values, arrival.owes_credit)
            else:
                self._inbox.put_ctx(peer, arrival.values)
        elif isinstance(arrival, ReplyArrived):
            self._calls.settle(peer, arrival.number, arrival.ok, arrival.value)
            self.traced.answer_came(peer, arrival, began_ns)
        elif isinstance(arrival, CallArrived):
            self._take_call(peer, arrival)
        elif isinstance(arrival, Joined):
            self._streams.joined(peer, is_new_life=arrival.is_new_life)
            self._inbox.wake()
            if peer in self._missed:
                self._missed.discard(peer)
                self._inbox.put_event(peer, "node_joined", (peer,), {})
        elif isinstance(arrival, Left):
            self._streams.left(peer)
            self._forget(peer)
            self._inbox.wake()

    def _take_call(self, peer: int, call: CallArrived) -> None:
        self._answers.begin(peer, call.number)
        service = self._of_streams.get(call.name)
        if service is None:
            if self._calls.is_quick(call.name):
                self._answer(peer, call)
            elif self._calls.answers(call.name) or not self._early.hold(peer, call):
                self._start([(peer, call)])
            elif self._calls.answers(call.name):  # registered just now
                self._start(self._early.take(call.name))
        else:  # in order, and without a word of the peer's about who it is
            began_ns = self.traced.now()
            answer = self._calls.guard(service, (peer, *call.args), call.kwargs)
            self.traced.item_came(peer, call.args, answer, began_ns)
            self._answers.give(peer, call.number, answer)

    def _deliver_ctx(self, peer: int, values: dict[str, Any], owes_credit: int) -> None:
        """Hand on values that had to be read from a segment, on the thread that has done so."""
        try:
            self._inbox.put_ctx(peer, values)
        finally:
            if owes_credit:
                with self._links.changed:
                    self._links.sessions[peer].credit(owes_credit)
                self._links.wake()

    def _note_lost(self, peer: int) -> None:
        self._missed.add(peer)
        self._forget(peer)
        self._inbox.wake()
        logger.warning("node %d lost node %d", self.node_id, peer)
        self._inbox.put_event(peer, "node_lost", (peer,), {})

    def _forget(self, peer: int) -> None:
        self._shared_receiver.forget(peer)
        self._early.forget(peer)
        self._answers.forget(peer)
        self._calls.fail(peer)

    # -- the end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """End the job on this node, as if another one had ended it."""
        self._inbox.put_event(self.node_id, FINISH, (), {})

    def close(self, *, good_bye: bool = True) -> None:
        """Wait until the peers have what was emitted and answered, exchange good-byes, and end.

        Args:
            good_bye: Whether to take leave; the peers count a node as lost that does not.
        """
        self._start(self._early.close())
        self._links.close(
            good_bye=good_bye, owes=lambda: self._answers.has_any_for(self._links.connected)
        )
        self._end("ended" if good_bye else "failed")

    def _end(self, state: State) -> None:
        self._transport.close()
        self._links.end()
        self._calls.end()
        self._reporter.close(state)
        self._shared_receiver.close()
        self._shared_sender.close()
        self._workers.close()

    # -- inside ------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._streams.look()
        self._start(self._early.overdue())
        self._reporter.turn()

    def _epoch_of(self, peer: int) -> int:
        who = self._links.sessions[peer].peer
        return 0 if who is None else who.epoch

    def _loads(self) -> tuple[int, int, int]:
        return self._streams.num_sent, self._streams.num_waiting, self._calls.num_under_way

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
