"""The router of a node: sends and receives events, ctx values, calls and stream items.

`NodeRouter` connects the parts: `Links` (connections and sessions), `Calls`, `Topics`, `Streams`,
and `Inbox`, which hands arrivals to the program. In a tree a relay passes messages on.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakSet

from ding_lite.clock import SYSTEM_CLOCK, Clock, Deadline
from ding_lite.errors import TransportError
from ding_lite.log import Throttle
from ding_lite.parallel.link.links import LinkCallbacks, Links
from ding_lite.parallel.link.session import Session
from ding_lite.parallel.memory.segments import domain
from ding_lite.parallel.memory.shared_values import SharedSender, local_peers
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.observe.message_trace import MessageTrace
from ding_lite.parallel.observe.metrics import State
from ding_lite.parallel.observe.metrics_reporter import Reporter
from ding_lite.parallel.router.calls import Calls, Handler
from ding_lite.parallel.router.job_view import JobView
from ding_lite.parallel.router.routing import Routing
from ding_lite.parallel.router.topics import Outbox, Topics
from ding_lite.parallel.transport.base import Transport
from ding_lite.parallel.transport.zeromq.transport import ZeroMQTransport
from ding_lite.parallel.wire.codec import Encoded, decode
from ding_lite.parallel.wire.messages import (
    ITEM,
    WITHDRAW,
    Arrival,
    CallArrived,
    EventArrived,
    Joined,
    Left,
    ReplyArrived,
    StateArrived,
    encode_call,
    encode_event,
    encode_item,
)
from ding_lite.runtime.interrupt import DeferredSigint, interruptible
from ding_lite.runtime.messaging.base import CtxPart, guard
from ding_lite.runtime.messaging.inbox import FINISH
from ding_lite.runtime.messaging.labels import matches, several
from ding_lite.runtime.messaging.streams import Parcel, Streams
from ding_lite.runtime.messaging.subscription import CTX, check_topic

logger = logging.getLogger(__name__)

EMIT_TIMEOUT_S = 30.0
"""Seconds that `emit` waits for a slow peer."""


_IN_PROCESS: WeakSet[NodeRouter] = WeakSet()
"""The routers of this process. A fork copies them, but not the threads and sockets they need."""


class _LockOfParent(AbstractContextManager[object]):
    """The lock of a router in a process that its node has forked."""

    def __enter__(self) -> None:
        raise TransportError(
            "This process was forked from a node, and cannot use the router of that node. Pass "
            "values for other nodes to that node, such as by a queue of multiprocessing."
        )

    def __exit__(self, *_: object) -> None: ...


def _refuse_in_child() -> None:
    for router in _IN_PROCESS:
        router.links.lock = _LockOfParent()


os.register_at_fork(after_in_child=_refuse_in_child)


class NodeRouter(JobView):
    """The connection of a node to the other nodes of its job, which are other processes.

    Args:
        spec: The place of this node in the job, and its peers.
        transport: Transfers the messages; ZeroMQ by default.
        clock: Measures silence and timeouts.
        services: Call handlers by name that run on the thread that reads messages. The first
            argument of each is the calling node; the others are untrusted.
        on_peer: Called on the same thread with each node that connects (True) or disconnects.
        beside: A second router of this node, which is closed with this one.
    """

    traced: MessageTrace

    def __init__(
        self,
        spec: NodeSpec,
        *,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
        services: Mapping[str, Handler] | None = None,
        on_peer: Callable[[int, bool], None] = lambda peer, is_there: None,
        beside: NodeRouter | None = None,
    ) -> None:
        super().__init__(spec, clock)
        self._on_peer = on_peer
        self._beside = beside
        self._missed: set[int] = set()
        """Nodes that were lost or admitted, to be announced by `node_joined` when they come."""
        self._throttle = Throttle(logger, clock)
        self.failure: Exception | None = None
        """The error that ends this node, if it is cut off from its job."""
        self.traced = MessageTrace(spec, self._incarnation_of)

        self._transport = transport or ZeroMQTransport(
            spec.node_id, peers=spec.peers, key_file=spec.key_file
        )
        memory = domain()
        nearby = local_peers(spec) if memory else frozenset()
        self._shared_sender = SharedSender(len(nearby))
        self._outbox = Outbox(spec.node_id, self._shared_sender, clock)
        callbacks = LinkCallbacks(
            on_arrival=self._deliver,
            on_lost=self._note_lost,
            on_tick=self._tick,
            on_state_sent=self.traced.state_sent,
            on_unknown_node=self._adopt,
            on_cut_off=self._note_cut_off,
        )
        self.links = Links(spec, self._transport, clock, callbacks, nearby=nearby, memory=memory)
        self.deferred_sigint = DeferredSigint(self._transport.end_pump)
        """Defers Ctrl-C while the main thread pumps messages."""

        self._calls = Calls(spec.node_id, self.links, self.traced, clock, self)
        for name, fn in (services or {}).items():
            self._calls.serve(name, fn)
        self._streams = Streams(self._send_item, self._withdraw, self._receivers, clock)
        self._calls.serve(ITEM, self._streams.arrive)
        self._calls.serve(WITHDRAW, self._streams.withdraw)
        self._routing = self._make_routing()
        self._serve_collectives()
        self._reporter = Reporter(
            spec, self.links, self._inbox, self._streams, self._calls.count_pending, clock
        )
        self._topics = Topics(
            self.links, self._routing, self._inbox, self.traced, keeps_offers=self.grows
        )
        _IN_PROCESS.add(self)
        try:
            self.links.start()
        except BaseException:
            self._end("failed", Deadline.after(0.0))
            if beside is not None:
                beside.close(good_bye=False)
            raise

    # -- connecting ----------------------------------------------------------------------------

    def wait_ready(self, timeout: float | None = None) -> None:
        # An exception in the signal handler could leave a lock held that `close` needs.
        with interruptible(lambda _: self.links.stop_waiting(), announce=False) as interruption:
            self.links.wait_ready(self._spec.startup_timeout if timeout is None else timeout)
        interruption.raise_if_any()

    # -- joining and leaving -----------------------------------------------------------------

    def admit(self, peer: int) -> None:
        """Add a peer: accept its connection, and send it the newest values."""
        if self.links.admit(peer):
            self._missed.add(peer)

    def expect(self, peers: Iterable[int]) -> None:
        """Accept connections of these nodes; each is a peer only after `admit`."""
        for peer in peers:
            self._transport.admit(peer)

    def dismiss(self, peer: int) -> None:
        """Remove a peer; only on the thread that reads messages."""
        self.links.dismiss(peer)
        self._missed.discard(peer)
        self._streams.left(peer)

    # -- events and the ctx ------------------------------------------------------------------

    def emit(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        if self.failure is not None:  # it ends this node, not the job
            return
        if event == FINISH:
            self.links.settle()
        began_ns, sent = 0 if self.traced.tracer is None else self.traced.now(), []
        encoded = encode_event(event, args, kwargs)
        with self.links.lock:
            if event == FINISH:
                self.links.end_of_run = encoded
            else:
                self._wait_for_room(event)
            for peer, session in self.links.sessions.items():
                if not session.has_left:
                    at_ns = began_ns and self.traced.now()
                    number = session.events.post(encoded)
                    sent.append((peer, number, at_ns))
            self.links.flush()
        if began_ns:
            self.traced.emitted(event, began_ns, sent)

    def publish(self, topic: str, tree: Any, *, to: str | Iterable[str] | None = None) -> None:
        self._check_not_forked()
        topic = check_topic(topic)
        receivers = self._checked_receivers(f"publish({topic!r})", to)
        self._topics.offer(self._outbox.encode(topic, tree), receivers)

    def _publish_parts(self, parts: Sequence[CtxPart]) -> None:
        self._check_not_forked()
        offers = [(self._slots(values), to) for values, to in parts]
        with self.links.lock:  # so that all of them go in one message
            for slots, to in offers:
                self._topics.offer(slots, None if to is None else several(to))

    def _slots(self, values: Mapping[str, Any]) -> dict[str, Any]:
        topics = {CTX + key if type(key) is str else key: v for key, v in values.items()}
        return self._outbox.fill(topics)

    def published(self, topic: str) -> Any:
        return self._outbox.newest(topic)

    def _is_reading(self) -> bool:
        return self._transport.is_calling

    def _check_not_forked(self) -> None:
        # Before memory is written to that a forked process shares with its node.
        if isinstance(self.links.lock, _LockOfParent):
            self.links.lock.__enter__()

    def _begin_wait(self, timeout: float | None) -> None:
        self._check_not_forked()
        super()._begin_wait(timeout)
        if timeout is not None and timeout <= 0:
            return
        if self._is_reading():
            raise TransportError(
                "This would wait for another node on the thread that reads the messages of this "
                "one, so nothing could arrive meanwhile. Callbacks of `router.ask`, listeners of "
                "`router.on` and quick handlers run there: use `router.ask`, or wait on a thread "
                "of your own."
            )
        self._calls.begin_wait()

    def pump(self, ready: Callable[[], bool], timeout: float | None) -> None:
        super().pump(ready, timeout)
        seconds = math.inf if timeout is None else timeout
        deferred = self.deferred_sigint
        if threading.get_ident() == deferred.thread:
            if not deferred.is_deferring:  # else it pumps already
                with deferred:
                    self._transport.pump(ready, seconds)
        elif threading.current_thread() is not threading.main_thread():
            self._transport.pump(ready, seconds)

    def wake_pump(self) -> None:
        self._transport.wake_pump()

    def _wait_for_room(self, event: str) -> None:
        """Wait until all peers have room for an event, so that all of them get it, or none."""
        deadline = None
        while (session := self._full_session()) is not None and not self._is_reading():
            self.links.wake()
            deadline = deadline or Deadline.after(EMIT_TIMEOUT_S, self._clock)
            if not deadline.wait(self.links.changed, lambda: self._full_session() is not session):
                is_hub = self._routing.reaches_beyond_peers
                hung = "that node, or one behind it," if is_hub else "that node"
                raise TransportError(
                    f"Node {session.peer_id} has not acknowledged earlier events for "
                    f"{EMIT_TIMEOUT_S:g} s, and its queue is full: event `{event}` was not sent. "
                    f"Is {hung} hung? Emit less often, or put values of which only the newest "
                    f"counts on the ctx."
                )

    def _full_session(self) -> Session | None:
        for session in [*self.links.sessions.values()]:
            if not (session.events.has_room or session.has_left):
                return session
        return None

    # -- calls -------------------------------------------------------------------------------

    def register(self, name: str, fn: Handler, *, quick: bool = False) -> None:
        self._calls.register(name, fn, quick=quick)

    def ask(self, node: int, name: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._calls.ask(node, name, args, kwargs)

    def _give_up(self, answer: Future[Any]) -> None:
        self._calls.give_up(answer)

    # -- streams -----------------------------------------------------------------------------

    def _item(self, stream: str, number: int, oldest: int, tree: Any) -> Encoded:
        return encode_item(ITEM, (self._spec.incarnation, stream, number, oldest), tree)

    def _send_item(self, node: int, parcel: Parcel) -> Future[Any]:
        if node == self.node_id:
            _, _, *args = decode(parcel.body.meta, parcel.body.buffers)
            return guard(self._streams.arrive, (node, *args), {})
        return self._routing.send_item(node, parcel)

    def _withdraw(self, node: int, numbers: Sequence[int]) -> Future[Any]:
        request = encode_call(WITHDRAW, (self._spec.incarnation, [*numbers]), {})
        return self._calls.send(node, WITHDRAW, request)

    def _receivers(self, patterns: Iterable[str]) -> list[int]:
        me = [self.node_id] if matches(self.labels, patterns) else []
        near = [p for p in self.links.connected if matches(self.labels_of(p), patterns)]
        return me + near + self._routing.reaches(patterns)

    # -- arrivals, on the thread that reads messages ------------------------------------------

    def _deliver(self, peer: int, arrival: Arrival) -> None:
        began_ns = 0 if self.traced.tracer is None else self.traced.now()
        if isinstance(arrival, EventArrived):
            if (taken := self._routing.take_event(peer, arrival)) is None:
                return
            sender, came = taken
            event = self.traced.event_came(peer, came, began_ns) if began_ns else came.event
            self._inbox.put_event(sender, event, came.args, came.kwargs)
        elif isinstance(arrival, StateArrived):
            self.traced.state_came(peer, arrival.number, began_ns)
            self._topics.take(peer, arrival)
        elif isinstance(arrival, ReplyArrived):
            self._calls.settle(peer, arrival, began_ns)
        elif isinstance(arrival, CallArrived):
            self._routing.take_call(peer, arrival)
        elif isinstance(arrival, Joined):
            self._note_joined(peer, arrival)
        elif isinstance(arrival, Left):
            self._streams.left(peer)
            self.collectives.left(peer)
            self._forget(peer)
            self._inbox.wake()
            if self.grows:
                self._inbox.put_event(peer, "node_left", (peer,), {})

    def _note_joined(self, peer: int, joined: Joined) -> None:
        if joined.is_new_incarnation and not self._routing.reaches_beyond_peers:
            self._topics.offer_newest(peer, joined.peer.labels)
        self._streams.joined(peer, is_new_incarnation=joined.is_new_incarnation)
        self.collectives.joined(peer, is_new_incarnation=joined.is_new_incarnation)
        self._routing.joined(peer, is_new_incarnation=joined.is_new_incarnation)
        self._inbox.wake()
        if peer in self._missed:
            self._missed.discard(peer)
            self._inbox.put_event(peer, "node_joined", (peer,), {})
        self._on_peer(peer, True)

    def _note_lost(self, peer: int) -> None:
        self._missed.add(peer)
        self._forget(peer)
        self._inbox.wake()
        self._throttle.every(
            1.0, logging.WARNING, f"lost {peer}", "node %d lost node %d", self.node_id, peer
        )
        self._inbox.put_event(peer, "node_lost", (peer,), {})

    def _note_cut_off(self, error: Exception) -> None:
        self.failure = error
        logger.warning("%s", error)
        self._inbox.put_failure(error)

    def _forget(self, peer: int) -> None:
        self._topics.forget(peer)
        self._calls.forget(peer)
        self._routing.gone(peer)
        self._on_peer(peer, False)

    # -- closing -----------------------------------------------------------------------------

    def finish(self) -> None:
        """End the job on this node, as if another node had ended it."""
        self._inbox.put_event(None, FINISH, (), {})

    def close(self, *, good_bye: bool = True, linger: float | None = None) -> None:
        """Wait until the peers have all events and answers, exchange good-byes, and disconnect.

        A lost peer may come back, so the node waits for it; undelivered messages are logged. A
        signal ends the wait.

        Args:
            good_bye: Whether to send good-byes; without one the peers count this node as lost.
            linger: Seconds to wait for a silent peer, and for a handler of a call that still runs;
                by default those of the node's spec.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed meanwhile.
            SystemExit: SIGTERM has come meanwhile.
        """
        try:
            if self._beside is not None:
                self._beside.close(good_bye=good_bye, linger=linger)
        finally:
            self._close(good_bye=good_bye and self.failure is None, linger=linger)

    def _close(self, *, good_bye: bool, linger: float | None) -> None:
        linger = self._spec.linger if linger is None else linger
        handlers_end = Deadline.after(linger, self._clock)
        with interruptible(lambda _: self.links.cancel_drain(), announce=False) as interruption:
            try:
                if good_bye:
                    self._routing.stay()
                self._calls.leave()
                self.links.close(
                    good_bye=good_bye,
                    linger=linger,
                    has_more=lambda: self._calls.has_unanswered(self.links.connected),
                )
            finally:
                self._end("ended" if good_bye else "failed", handlers_end)
        interruption.raise_if_any()

    def _end(self, state: State, handlers_end: Deadline) -> None:
        self._transport.close()
        self.links.end()
        self._streams.log_left_over(self.node_id)
        self._calls.fail("This node has left before a call was answered.", lambda _: True)
        self._reporter.close(state)
        self._topics.close()
        self._shared_sender.close()
        self._calls.close(handlers_end)

    # -- internals ---------------------------------------------------------------------------

    def _adopt(self, peer: int) -> bool:
        """Admit a connecting node that is no peer yet, if the job has such a node."""
        return False

    def _make_routing(self) -> Routing:
        return Routing(self.links, self._calls)

    def _tick(self) -> None:
        self._streams.resolve_expired()
        self._routing.tick()
        self._calls.tick()
        self._reporter.turn()

    def _incarnation_of(self, peer: int) -> int:
        session = self.links.sessions.get(peer)
        return 0 if session is None or session.peer is None else session.peer.incarnation
