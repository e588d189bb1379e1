"""The router of a node: sends and receives events, ctx values, calls and stream items.

`NodeRouter` connects the parts: `Links` (connections and sessions), `DirectRouting` or a relay,
`CallEndpoint`, `ItemStreams`, `StateExchange`, and `Inbox`, which hands arrivals to the program.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ding_lite.clock import SYSTEM_CLOCK, Clock, Deadline
from ding_lite.errors import TransportError
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.link.session import Session
from ding_lite.parallel.memory.segments import domain
from ding_lite.parallel.memory.shared_values import (
    SharedSender,
    job_of,
    local_peers,
)
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.observe.message_trace import MessageTrace
from ding_lite.parallel.observe.metrics import State
from ding_lite.parallel.observe.metrics_reporter import Reporter
from ding_lite.parallel.router.call_endpoint import CallEndpoint
from ding_lite.parallel.router.calls import Handler
from ding_lite.parallel.router.item_streams import ItemStreams
from ding_lite.parallel.router.job_view import JobView
from ding_lite.parallel.router.routing import DirectRouting
from ding_lite.parallel.router.state_exchange import StateExchange
from ding_lite.parallel.router.state_outbox import StateOutbox
from ding_lite.parallel.transport.base import Transport
from ding_lite.parallel.transport.zeromq.transport import ZeroMQTransport
from ding_lite.parallel.wire.codec import Encoded
from ding_lite.parallel.wire.messages import (
    Arrival,
    CallArrived,
    EventArrived,
    Joined,
    Left,
    ReplyArrived,
    StateArrived,
    encode_event,
)
from ding_lite.runtime.interrupt import DeferredSigint, interruptible
from ding_lite.runtime.messaging.base import Router
from ding_lite.runtime.messaging.inbox import FINISH
from ding_lite.runtime.messaging.labels import check_patterns, several
from ding_lite.runtime.messaging.streams import Until
from ding_lite.runtime.messaging.subscription import check_topic
from ding_lite.settings import check_all, whole

logger = logging.getLogger(__name__)

EMIT_TIMEOUT_S = 30.0
"""Seconds that `emit` waits for a slow peer."""


class NodeRouter(Router):
    """The connection of a node to the other nodes of its job, which are other processes.

    Args:
        spec: The place of this node in the job, and its peers.
        transport: Transfers the messages; ZeroMQ by default.
        clock: Measures silence and timeouts.
        services: Call handlers by name that run on the thread that reads messages. The first
            argument of each is the calling node; the others are untrusted.
        on_peer: Called on the same thread with each node that connects (True) or disconnects.
    """

    # More than 20 methods: those of `Router`, and what the launcher and the membership of an
    # elastic job tell a router.

    traced: MessageTrace

    def __init__(
        self,
        spec: NodeSpec,
        *,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
        services: Mapping[str, Handler] | None = None,
        on_peer: Callable[[int, bool], None] = lambda peer, is_there: None,
    ) -> None:
        super().__init__()
        self._spec = spec
        self._clock = clock
        self._on_peer = on_peer
        self._missed: set[int] = set()
        self._newcomers: set[int] = set()
        self._lasting: list[Encoded] = []
        self.failure: Exception | None = None
        """The error that ends this node, if it is cut off from its job."""
        self.traced = MessageTrace(spec, self._incarnation_of)

        self._transport = transport or ZeroMQTransport(
            spec.node_id, peers=spec.peers, key_file=spec.key_file
        )
        memory = domain()
        nearby = local_peers(spec) if memory else frozenset()
        self._shared_sender = SharedSender(job_of(spec), len(nearby))
        self._outbox = StateOutbox(spec.node_id, self._shared_sender, clock)
        self._links = Links(
            spec,
            self._transport,
            clock,
            nearby=nearby,
            memory=memory,
            on_arrival=self._deliver,
            on_lost=self._note_lost,
            on_tick=self._tick,
        )
        self._links.on_state_sent = self.traced.state_sent
        self._links.on_unknown_node = self._adopt
        self._links.on_cut_off = self._note_cut_off
        self.deferred_sigint = DeferredSigint(self._transport.wake_pump)
        """Defers Ctrl-C while the main thread pumps messages."""

        self._endpoint = CallEndpoint(spec.node_id, self._links, self.traced, clock, self)
        for name, fn in (services or {}).items():
            self._endpoint.serve(name, fn)
        self._routing = self._make_routing()
        self._job_view = JobView(spec, self._links, self._routing)
        self._item_streams = ItemStreams(
            spec, self._links, self._endpoint, self.traced, clock, self._routing
        )
        self._streams = self._item_streams.streams
        self._serve_collectives()
        self._reporter = Reporter(spec, self._links, self._inbox, self._loads, clock)
        self._state = StateExchange(
            self._links,
            self._routing,
            self._outbox,
            self._inbox,
            self.traced,
            keeps_offers=self.grows,
        )
        try:
            self._links.start()
        except BaseException:
            self._end("failed")
            raise

    # -- nodes and peers ---------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self._spec.node_id

    @property
    def labels(self) -> frozenset[str]:
        return self._spec.labels

    @property
    def address(self) -> str | None:
        return self._links.address

    @property
    def host(self) -> str | None:
        return self._job_view.host

    @property
    def is_active(self) -> bool:
        return self._links.is_active

    @property
    def has_audience(self) -> bool:
        return self._links.has_audience

    @property
    def peers(self) -> tuple[int, ...]:
        near = self._links.connected
        return tuple(sorted([*near, *self._routing.far])) if self._routing.passes_on else near

    @property
    def num_rejected(self) -> int:
        """Dropped messages: malformed, or not for this node."""
        return self._links.num_rejected

    @property
    def world(self) -> tuple[frozenset[str], ...]:
        return self._job_view.world

    @property
    def grows(self) -> bool:
        return self._spec.growth is not None

    @property
    def may_leave(self) -> bool:
        return self._spec.has_joined

    def coordinator_of(self, members: Sequence[int]) -> int:
        return self._job_view.coordinator_of(members)

    def wait_ready(self, timeout: float | None = None) -> None:
        # An exception in the signal handler could leave a lock held that `close` needs.
        with interruptible(lambda _: self._links.stop_waiting(), announce=False) as interruption:
            self._links.wait_ready(self._spec.startup_timeout if timeout is None else timeout)
        interruption.raise_if_any()

    def redial(self, peer: int, address: str) -> None:
        """Dial a peer at its new address.

        Raises:
            ConfigError: This node does not dial that peer.
        """
        self._links.redial(peer, address)

    # -- joining and leaving -----------------------------------------------------------------

    def admit(self, peer: int) -> None:
        """Add a peer: accept its connection, and send it the newest values."""
        if self._links.admit(peer, lasting=self._lasting):
            self._newcomers.add(peer)
            self._missed.add(peer)

    def expect(self, peers: Iterable[int]) -> None:
        """Accept connections of these nodes; each is a peer only after `admit`."""
        for peer in peers:
            self._transport.admit(peer)

    def dismiss(self, peer: int) -> None:
        """Remove a peer; only on the thread that reads messages."""
        self._links.dismiss(peer)
        self._newcomers.discard(peer)
        self._missed.discard(peer)
        self._streams.left(peer)

    @property
    def changed(self) -> threading.Condition:
        """Notified when a node connects or disconnects, and when a roster arrives."""
        return self._links.changed

    def has_left(self, peer: int) -> bool:
        """Tell whether a peer has sent a good-bye."""
        session = self._links.sessions.get(peer)
        return session is None or session.has_left

    def labels_of(self, peer: int) -> frozenset[str]:
        """Return the labels of a peer; empty before its handshake."""
        return self._links.labels_of(peer)

    def note_labels(self, node: int, labels: frozenset[str], event: str = "") -> None:
        """Record the labels of a node of the job.

        Args:
            node: The node.
            labels: Its labels; empty for a node that is gone.
            event: An event to emit locally, where the node is no peer.
        """
        self._job_view.note_labels(node, labels)
        if event:
            self._inbox.put_event(node, event, (node,), {})
        self._inbox.wake()

    # -- events and the ctx ------------------------------------------------------------------

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        if self.failure is not None:  # it ends this node, not the job
            return
        if event == FINISH:
            self._links.settle()
        began_ns, sent = self.traced.now(), []
        encoded = encode_event(event, args, kwargs)
        with self._links.changed:
            if event == FINISH:
                self._lasting.append(encoded)
            for peer, session in [*self._links.sessions.items()]:
                if not session.has_left:
                    if event != FINISH and not session.events.has_room:  # FINISH waits for none
                        self._wait_for_room(session, event)
                    at_ns = began_ns and self.traced.now()
                    number = session.events.post(encoded, lasting=event == FINISH)
                    sent.append((peer, number, at_ns))
            self._links.flush()
        if began_ns:
            self.traced.emitted(event, began_ns, sent)

    def publish(self, topic: str, tree: Any, *, to: str | Iterable[str] | None = None) -> None:
        patterns = None if to is None else check_patterns(to)
        self._state.publish(check_topic(topic), tree, patterns)

    def publish_ctx(self, values: Mapping[str, Any], *, to: Iterable[str] | None = None) -> None:
        self._state.publish_ctx(values, None if to is None else several(to))

    def published(self, topic: str) -> Any:
        return self._outbox.newest(topic)

    def pump(self, ready: Callable[[], bool], timeout: float | None) -> None:
        seconds = math.inf if timeout is None else timeout
        if self._links.is_calling:
            return
        if threading.current_thread() is not threading.main_thread():
            self._transport.pump(ready, seconds)
        elif self.deferred_sigint.is_installed:
            with self.deferred_sigint as deferred:
                self._transport.pump(lambda: deferred.is_pending or ready(), seconds)

    def wake_pump(self) -> None:
        self._transport.wake_pump()

    def _wait_for_room(self, session: Session, event: str) -> None:
        if self._links.is_calling:
            return
        self._links.wake()
        deadline = Deadline.after(EMIT_TIMEOUT_S, self._clock)
        if not deadline.wait(
            self._links.changed, lambda: session.events.has_room or session.has_left
        ):
            hung = "that node, or one behind it," if self._routing.passes_on else "that node"
            raise TransportError(
                f"Node {session.peer_id} has not acknowledged earlier events for "
                f"{EMIT_TIMEOUT_S:g} s, and its queue is full: event `{event}` was not sent. "
                f"Is {hung} hung? Emit less often, or put values of which only the newest counts "
                f"on the ctx."
            )

    # -- calls -------------------------------------------------------------------------------

    def register(self, name: str, fn: Handler, *, quick: bool = False) -> None:
        self._endpoint.register(name, fn, quick=quick)

    def call(
        self, node: int, name: str, *args: Any, timeout: float | None = 30.0, **kwargs: Any
    ) -> Any:
        return self._endpoint.call(node, name, args, kwargs, timeout)

    def ask(self, node: int, name: str, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._endpoint.ask(node, name, args, kwargs)

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
        check_all(whole(1, in_flight=in_flight))
        return self._item_streams.send(
            stream, tree, check_patterns(to), in_flight=in_flight, timeout=timeout, until=until
        )

    # -- arrivals, on the thread that reads messages ------------------------------------------

    def _deliver(self, peer: int, arrival: Arrival) -> None:
        began_ns = self.traced.now()
        if isinstance(arrival, EventArrived):
            if (taken := self._routing.take_event(peer, arrival)) is not None:
                sender, came = taken
                event = self.traced.event_came(peer, came, began_ns) if began_ns else came.event
                self._inbox.put_event(sender, event, came.args, came.kwargs)
        elif isinstance(arrival, StateArrived):
            self.traced.state_came(peer, arrival, began_ns)
            self._state.receive(peer, arrival)
        elif isinstance(arrival, ReplyArrived):
            self._endpoint.settle(peer, arrival, began_ns)
        elif isinstance(arrival, CallArrived):
            self._routing.take_call(peer, arrival)
        elif isinstance(arrival, Joined):
            if peer in self._newcomers:
                self._newcomers.discard(peer)
                self._state.offer_newest(peer, arrival.peer.labels)
            self._streams.joined(peer, is_new_incarnation=arrival.is_new_incarnation)
            self._routing.joined(peer, is_new_incarnation=arrival.is_new_incarnation)
            self._inbox.wake()
            if peer in self._missed:
                self._missed.discard(peer)
                self._inbox.put_event(peer, "node_joined", (peer,), {})
            self._on_peer(peer, True)
        elif isinstance(arrival, Left):
            self._streams.left(peer)
            self._forget(peer)
            self._inbox.wake()
            if self.grows:
                self._inbox.put_event(peer, "node_left", (peer,), {})

    def _note_lost(self, peer: int) -> None:
        self._missed.add(peer)
        self._forget(peer)
        self._inbox.wake()
        logger.warning("node %d lost node %d", self.node_id, peer)
        self._inbox.put_event(peer, "node_lost", (peer,), {})

    def _note_cut_off(self, error: Exception) -> None:
        self.failure = error
        logger.warning("%s", error)
        self._inbox.put_failure(error)

    def _forget(self, peer: int) -> None:
        self._state.forget(peer)
        self._endpoint.forget(peer)
        self._routing.gone(peer)
        self._on_peer(peer, False)

    # -- closing -----------------------------------------------------------------------------

    def finish(self) -> None:
        """End the job on this node, as if another node had ended it."""
        self._inbox.put_event(self.node_id, FINISH, (), {})

    def note_ended(self, node: int, *, incarnation: int) -> None:
        """Record that the process of a peer has ended, so that `close` does not wait for it."""
        self._links.note_ended(node, incarnation)

    def close(self, *, good_bye: bool = True, linger: float | None = None) -> None:
        """Wait until the peers have all events and answers, exchange good-byes, and disconnect.

        A lost peer may come back, and is waited for; undelivered messages are logged. A signal
        ends the wait.

        Args:
            good_bye: Whether to send good-byes; without one the peers count this node as lost.
            linger: Seconds to wait for a silent peer; those of the node's spec by default.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed meanwhile.
            SystemExit: SIGTERM has come meanwhile.
        """
        good_bye = good_bye and self.failure is None
        with interruptible(lambda _: self._links.hurry(), announce=False) as interruption:
            try:
                if good_bye:
                    self._routing.stay()
                self._endpoint.leave()
                self._links.close(
                    good_bye=good_bye,
                    linger=self._spec.linger if linger is None else linger,
                    has_more=lambda: self._endpoint.owes(self._links.connected),
                )
            finally:
                self._end("ended" if good_bye else "failed")
        interruption.raise_if_any()

    def _end(self, state: State) -> None:
        self._transport.close()
        self._links.end()
        self._endpoint.end()
        self._reporter.close(state)
        self._state.close()
        self._shared_sender.close()
        self._endpoint.close()

    # -- internals ---------------------------------------------------------------------------

    def _adopt(self, peer: int) -> bool:
        """Admit a node that is no peer but connects, if the job has such a node."""
        return False

    def _make_routing(self) -> DirectRouting:
        return DirectRouting(self._links, self._endpoint)

    def _tick(self) -> None:
        self._streams.look()
        self._routing.tick()
        self._endpoint.tick()
        self._reporter.turn()

    def _incarnation_of(self, peer: int) -> int:
        session = self._links.sessions.get(peer)
        return 0 if session is None or session.peer is None else session.peer.incarnation

    def _loads(self) -> tuple[int, int, int]:
        return self._streams.num_sent, self._streams.num_waiting, self._endpoint.num_under_way
