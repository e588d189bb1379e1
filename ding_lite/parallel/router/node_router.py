"""The router of a node among processes: what its program may say to the other nodes, and hears."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ding_lite.clock import SYSTEM_CLOCK, Clock, Deadline
from ding_lite.errors import ConfigError, TransportError
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.link.session import Session
from ding_lite.parallel.memory.segments import domain
from ding_lite.parallel.memory.shared_values import (
    SharedReceiver,
    SharedSender,
    job_of,
    local_peers,
)
from ding_lite.parallel.network.address import ANY_HOST, Address, is_loopback
from ding_lite.parallel.network.interfaces import interface_towards
from ding_lite.parallel.network.topology import NodeSpec, edges, neighbours
from ding_lite.parallel.observe.message_trace import MessageTrace
from ding_lite.parallel.observe.metrics import State
from ding_lite.parallel.observe.metrics_reporter import Reporter
from ding_lite.parallel.router.call_endpoint import CallEndpoint
from ding_lite.parallel.router.calls import Handler
from ding_lite.parallel.router.ctx_outbox import CtxOutbox
from ding_lite.parallel.router.item_streams import ItemStreams
from ding_lite.parallel.router.routing import DirectRouting
from ding_lite.parallel.transport.base import Transport
from ding_lite.parallel.transport.zeromq.transport import ZeroMQTransport
from ding_lite.parallel.wire.codec import Encoded
from ding_lite.parallel.wire.messages import (
    Arrival,
    CallArrived,
    CtxArrived,
    EventArrived,
    Joined,
    Left,
    ReplyArrived,
    encode_event,
)
from ding_lite.runtime.context import is_key
from ding_lite.runtime.interrupt import DeferredSigint, interruptible
from ding_lite.runtime.messaging.collectives import COLLECTIVE, PAIRED, Collectives
from ding_lite.runtime.messaging.inbox import FINISH, Inbox, Listening, Receiver
from ding_lite.runtime.messaging.labels import check_patterns, matches, several
from ding_lite.runtime.messaging.streams import Item, Until
from ding_lite.runtime.messaging.watch import Watch
from ding_lite.settings import check_all, whole

logger = logging.getLogger(__name__)

EMIT_TIMEOUT_S = 30.0
"""How long `emit` waits for a peer that does not keep up."""


class NodeRouter:
    """A node's way to the other nodes of its job, which run in other processes.

    Args:
        spec: Who this node is and whom it is connected to.
        transport: What moves the messages; ZeroMQ by default.
        clock: What silence and waits are measured by.
        services: What answers calls on the thread that reads them, by their names. Each also gets
            who asks, as its first argument, and need not believe a word of it.
        on_peer: Hears on the same thread of each node that is connected now, or is not any more.
    """

    def __init__(
        self,
        spec: NodeSpec,
        *,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
        services: Mapping[str, Handler] | None = None,
        on_peer: Callable[[int, bool], None] = lambda peer, is_there: None,
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._on_peer = on_peer
        self._inbox = Inbox()
        self._missed: set[int] = set()
        self._newcomers: set[int] = set()
        self._offered: dict[str, tuple[tuple[str, ...] | None, Any]] = {}
        self._lasting: list[Encoded] = []
        self._places: dict[int, frozenset[str]] = {}
        self.failure: Exception | None = None
        """Why this node must end, if it cannot reach its job any more."""
        self.traced = MessageTrace(spec, self._incarnation_of)
        """What this node has for a time line of its messages."""

        self._transport = transport or ZeroMQTransport(
            spec.node_id, peers=spec.peers, key_file=spec.key_file
        )
        memory = domain()
        nearby = local_peers(spec) if memory else frozenset()
        self._shared_sender = SharedSender(job_of(spec), len(nearby))
        self._outbox = CtxOutbox(spec.node_id, self._shared_sender, clock)
        self._links = Links(
            spec,
            self._transport,
            clock,
            nearby=nearby,
            memory=memory,
            on_arrival=self._deliver,
            on_lost=self._note_lost,
            on_tick=self._turn,
        )
        self._links.on_ctx_sent = self.traced.ctx_sent
        self._links.on_unknown_node = self._adopt
        self._links.on_cut_off = self._note_cut_off
        self.deferred_sigint = DeferredSigint(self._transport.wake_pump)
        """What Ctrl-C has to have, so that the main thread may take what comes (`pump`)."""

        self._endpoint = CallEndpoint(spec.node_id, self._links, self.traced, clock, self)
        for name, fn in (services or {}).items():
            self._endpoint.serve(name, fn)
        self._routing = self._make_routing()
        self._item_streams = ItemStreams(
            spec, self._links, self._endpoint, self.traced, clock, self._routing
        )
        self._streams = self._item_streams.streams
        self.collectives = Collectives()
        self.register(COLLECTIVE, self.collectives.contribute)
        self.register(PAIRED, self.collectives.paired)
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
    def host(self) -> str | None:
        """By what other nodes reach this machine, for what does not go over the router.

        None where the router does not know: where it listens on all interfaces and dials nobody
        on another machine, and in a job of one machine that needs no network.
        """
        known = [self.address or "", *self._spec.dials.values(), self._spec.desk or ""]
        places = [Address.parse(place) for place in known if place.startswith("tcp")]
        named = [place for place in places if place.place not in ANY_HOST]
        if not named:
            return None
        if named[0] == places[0] and self.address is not None:
            return named[0].place
        own = interface_towards(named[0])
        return None if named != places and is_loopback(own) else own

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
        """The ids of the nodes connected to this one; in a tree also of those behind them."""
        near = self._links.connected
        return tuple(sorted([*near, *self._routing.far])) if self._routing.passes_on else near

    @property
    def num_rejected(self) -> int:
        """Messages that were dropped because they were none, or not for this node."""
        return self._links.num_rejected

    @property
    def world(self) -> tuple[frozenset[str], ...]:
        """The labels of every node of the job; none of a node that this one does not know."""
        if self._spec.world and not self._places:
            return self._spec.world
        with self._links.changed:
            known = [s.peer for s in self._links.sessions.values() if s.peer is not None]
        of_node = self._routing.labels | {self.node_id: self.labels}
        of_node |= dict(enumerate(self._spec.world))
        of_node |= {peer.node_id: peer.labels for peer in known}
        of_node |= self._places
        said = [peer.num_nodes for peer in known] + [max(of_node) + 1]
        num_nodes = self._spec.num_nodes or max(said)
        if self.grows:
            num_nodes = max(num_nodes, max(of_node) + 1)
        return tuple(of_node.get(node, frozenset()) for node in range(num_nodes))

    @property
    def grows(self) -> bool:
        """Whether nodes may join the job and leave it: no labels in `world` are an empty place."""
        return self._spec.growth is not None

    @property
    def may_leave(self) -> bool:
        """Whether the end of this node's own run does not end the job."""
        return self._spec.has_joined

    def coordinator_of(self, members: Sequence[int]) -> int:
        """Return a node that all these nodes can call, the same one on each of them.

        Raises:
            ConfigError: There is none.
        """
        if self._routing.passes_on:
            return members[0]
        num_nodes, links = len(self.world), self._spec.edges
        if self._spec.growth is not None:
            links = edges(self._spec.growth.topology, num_nodes)
        candidates: list[int] = [*members, *range(num_nodes)]
        for node in candidates:
            if set(members) <= neighbours(links, node) | {node}:
                return node
        raise ConfigError(
            f"The nodes {[*members]} share no node that all of them are connected to, so they "
            f"cannot meet. Add edges, or use a mesh or a star."
        )

    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until every peer has introduced itself.

        Raises:
            DeadlineExceeded: Somebody did not in time; says who.
            AuthenticationError: Somebody has refused this node; says why.
            KeyboardInterrupt: Ctrl-C was pressed meanwhile.
        """
        # Raised by the signal itself, it could leave a lock behind that closing needs.
        with interruptible(lambda _: self._links.stop_waiting(), announce=False) as interruption:
            self._links.wait_ready(self._spec.startup_timeout if timeout is None else timeout)
        interruption.raise_if_any()

    def redial(self, peer: int, address: str) -> None:
        """Dial a peer that has moved at its new address.

        Raises:
            ConfigError: This node does not dial it: it is dialled by it.
        """
        self._links.redial(peer, address)

    # -- who joins and leaves ----------------------------------------------------------------

    def admit(self, peer: int) -> None:
        """Let a further node be a peer: it may connect, and gets what is newest."""
        if self._links.admit(peer, lasting=self._lasting):
            self._newcomers.add(peer)
            self._missed.add(peer)

    def expect(self, peers: Iterable[int]) -> None:
        """Let these nodes connect; each is a peer only once it was admitted."""
        for peer in peers:
            self._transport.admit(peer)

    def dismiss(self, peer: int) -> None:
        """Count a node as a peer no more; only on the thread that reads messages."""
        self._links.dismiss(peer)
        self._newcomers.discard(peer)
        self._missed.discard(peer)
        self._streams.left(peer)

    @property
    def changed(self) -> threading.Condition:
        """Notified when a node is connected or not any more, and when one is told of others."""
        return self._links.changed

    def has_left(self, peer: int) -> bool:
        """Tell whether a peer has said good-bye."""
        session = self._links.sessions.get(peer)
        return session is None or session.has_left

    def labels_of(self, peer: int) -> frozenset[str]:
        """Return the labels of a peer; none before it has introduced itself."""
        return self._links.labels_of(peer)

    def note_place(self, node: int, labels: frozenset[str], event: str = "") -> None:
        """Note the labels of a node of the job; none of one that is gone.

        Args:
            node: The node.
            labels: Its labels.
            event: What the program hears of it, where it is no peer.
        """
        self._places[node] = labels
        if event:
            self._inbox.put_event(node, event, (node,), {})
        self._inbox.wake()

    # -- events and the ctx ------------------------------------------------------------------

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Send an event to every connected node: exactly once, in order.

        Raises:
            CodecError: An argument cannot travel.
            TransportError: A peer has not kept up for too long.
        """
        if self.failure is not None:  # which ends this node, and not the job
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
                    if not session.has_room and event != FINISH:  # which must not wait for one
                        self._wait_for_room(session, event)
                    at_ns = began_ns and self.traced.now()
                    sent.append((peer, session.post(encoded, lasting=event == FINISH), at_ns))
            self._links.say()
        if began_ns:
            self.traced.emitted(event, began_ns, sent)

    def publish_ctx(self, values: Mapping[str, Any], *, to: Iterable[str] | None = None) -> None:
        """Offer ctx values to the connected nodes that `to` matches; the newest wins.

        What cannot be encoded stays home, with one warning a key.
        """
        began_ns, peers = self.traced.now(), []
        patterns = None if to is None else several(to)
        slots = self._routing.signed(self._outbox.fill(values), patterns)
        with self._links.changed:
            if self.grows:
                self._offered |= {key: (patterns, slot) for key, slot in slots.items()}
            for peer, session in self._links.sessions.items():
                if patterns is None or self._routing.leads_to(peer, patterns):
                    session.offer(slots)
                    peers.append(peer)
            self.traced.published(began_ns, peers)
        self._links.wake()

    def published(self, key: str) -> Any:
        """Return what this node has offered last under a key; None where nothing was.

        Tensors are copies. Arrays may only be read, and stay as they are.
        """
        return self._outbox.newest(key)

    def on(self, event: str, fn: Callable[..., object]) -> None:
        """Call `fn` with the arguments of each such event, on the thread that reads it."""
        self.join(Listening(event, fn))

    def join(self, receiver: Receiver) -> Callable[[], None]:
        """Hand what arrives to a receiver from now on; the returned function ends that."""
        return self._inbox.join(receiver)

    def watch(self, *keys: str) -> Watch:
        """Show ctx values of these keys as they come; what came for the first task is shown too."""
        return self._inbox.watch(*keys)

    def pump(self, ready: Callable[[], bool], timeout: float | None) -> None:
        """Take what comes on this thread until `ready()`, where that is possible and saves time.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed meanwhile.
        """
        if self._links.is_calling:
            return
        if threading.current_thread() is not threading.main_thread():
            self._links.pump(ready, timeout)
        elif self.deferred_sigint.is_installed:
            with self.deferred_sigint as deferred:
                self._links.pump(lambda: deferred.is_pending or ready(), timeout)

    def wake_pump(self) -> None:
        """Make the pumping thread check `ready` again."""
        self._links.wake_pump()

    def _wait_for_room(self, session: Session, event: str) -> None:
        if self._links.is_calling:
            return
        self._links.wake()
        deadline = Deadline.after(EMIT_TIMEOUT_S, self._clock)
        if not deadline.wait(self._links.changed, lambda: session.has_room or session.has_left):
            hung = "that node, or one behind it," if self._routing.passes_on else "that node"
            raise TransportError(
                f"Node {session.peer_id} has not acknowledged earlier events for "
                f"{EMIT_TIMEOUT_S:g} s, and no more may wait for it: event `{event}` was not sent. "
                f"Is {hung} hung? Emit less often, or put what only needs its newest value on "
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
        self._endpoint.register(name, fn, quick=quick)

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
        return self._endpoint.call(node, name, args, kwargs, timeout)

    def ask(self, node: int, name: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Ask another node without waiting; the future gets the answer, or why there is none.

        Raises:
            CodecError: An argument cannot travel.
        """
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
        """Send an item to exactly one of the nodes that label patterns match.

        It waits until one of them has room. This node is a receiver too if its own labels match.

        A link that breaks makes no second receiver: what was under way waits for the node until
        it is back. If it comes back in a new incarnation, leaves, loses its place in an elastic
        job, or is away for more than two minutes, other nodes get what it has not answered. Unless
        it has left it may have taken one of these items just before: then that item is taken twice,
        with the same `Item.id`.

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
        return self._item_streams.send(
            stream,
            tree,
            check_patterns(to),
            in_flight=in_flight,
            timeout=timeout,
            until=until,
        )

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

    # -- what arrives, on the thread that reads it ---------------------------------------------

    def _deliver(self, peer: int, arrival: Arrival) -> None:
        began_ns = self.traced.now()
        if isinstance(arrival, EventArrived):
            if (taken := self._routing.take_event(peer, arrival)) is not None:
                sender, came = taken
                event = self.traced.event_came(peer, came, began_ns) if began_ns else came.event
                self._inbox.put_event(sender, event, came.args, came.kwargs)
        elif isinstance(arrival, CtxArrived):
            self.traced.ctx_came(peer, arrival, began_ns)
            if arrival.owes_credit or self._shared_receiver.is_busy:
                self._shared_receiver.put(peer, arrival.values, arrival.owes_credit)
            else:
                self._take_ctx(peer, arrival.values)
        elif isinstance(arrival, ReplyArrived):
            self._endpoint.settle(peer, arrival, began_ns)
        elif isinstance(arrival, CallArrived):
            self._routing.take_call(peer, arrival)
        elif isinstance(arrival, Joined):
            if peer in self._newcomers:
                self._newcomers.discard(peer)
                self._offer_newest(peer, arrival.peer.labels)
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

    def _offer_newest(self, peer: int, labels: frozenset[str]) -> None:
        """Offer a node that has just joined what was published before it came."""
        with self._links.changed:
            offered = self._offered.items()
            slots = {k: v for k, (to, v) in offered if to is None or matches(labels, to)}
            if (session := self._links.sessions.get(peer)) is not None:
                session.offer(slots)
        self._links.wake()

    def _deliver_ctx(self, peer: int, values: dict[str, Any], owes_credit: int) -> None:
        """Hand on values that had to be read from a segment, on the thread that has done so."""
        try:
            self._take_ctx(peer, values)
        finally:
            if owes_credit:
                with self._links.changed:
                    if (session := self._links.sessions.get(peer)) is not None:
                        session.credit(owes_credit)
                self._links.wake()

    def _take_ctx(self, peer: int, values: dict[str, Any]) -> None:
        for sender, own in self._routing.take_ctx(peer, values).items():
            for key in [key for key in own if not is_key(key)]:
                del own[key]
                self._links.reject(f"Node {sender} puts `{key:.80}` on its ctx, which has no such.")
            self._inbox.put_ctx(sender, own)

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
        self._shared_receiver.forget(peer)
        self._endpoint.forget(peer)
        self._routing.gone(peer)
        self._on_peer(peer, False)

    # -- the end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """End the job on this node, as if another one had ended it."""
        self._inbox.put_event(self.node_id, FINISH, (), {})

    def note_ended(self, node: int, *, incarnation: int) -> None:
        """Note that a peer's process has ended, so that `close` waits for it no more."""
        self._links.note_ended(node, incarnation)

    def close(self, *, good_bye: bool = True, linger: float | None = None) -> None:
        """Wait until the peers have what was emitted and answered, exchange good-byes, and end.

        A lost peer may come back, and is waited for; what it misses then is logged. A signal ends
        the wait.

        Args:
            good_bye: Whether to take leave; the peers count a node as lost that does not.
            linger: Seconds to wait for a peer since it was last heard of; those of the node's
                spec by default.

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
                    owes=lambda: self._endpoint.owes(self._links.connected),
                )
            finally:
                self._end("ended" if good_bye else "failed")
        interruption.raise_if_any()

    def _end(self, state: State) -> None:
        self._transport.close()
        self._links.end()
        self._endpoint.end()
        self._reporter.close(state)
        self._shared_receiver.close()
        self._shared_sender.close()
        self._endpoint.close()

    # -- inside ------------------------------------------------------------------------------

    def _adopt(self, peer: int) -> bool:
        """Admit a node that is no peer and greets, if the job has such a node."""
        return False

    def _make_routing(self) -> DirectRouting:
        return DirectRouting(self._links, self._endpoint)

    def _turn(self) -> None:
        self._streams.look()
        self._routing.turn()
        self._endpoint.turn()
        self._reporter.turn()

    def _incarnation_of(self, peer: int) -> int:
        session = self._links.sessions.get(peer)
        return 0 if session is None or session.peer is None else session.peer.incarnation

    def _loads(self) -> tuple[int, int, int]:
        return self._streams.num_sent, self._streams.num_waiting, self._endpoint.num_under_way
