"""Relay messages in a tree: a hub forwards messages that are meant for other nodes.

In a tree hubs replace direct links. Broadcasts are relayed: values of topics and events from the
parent to all nodes below, and events from below up to the root. Addressed messages (values with
labels, items and calls) go only to their receivers, wherever those are.

- State: each hub keeps a slot for each topic of each sender, as for its own values; the newest
  value wins. So a slow branch does not delay another one.
- Events: a hub relays each event once and in order, and acknowledges it when its receivers have
  (`EventFlow`). So no event is lost when a hub is killed.
- Items of streams are kept on their route until a program has taken them (`HopQueue`).
- A call goes from hop to hop; its answer names the node that has answered.

A hub stays after the end of its program until all nodes below it have left.

`RoutingTable` computes the routes. Relayed messages use the sessions of the hub like its own ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from operator import eq
from typing import Any

import msgspec

from ding_lite.clock import Clock, Deadline
from ding_lite.errors import CodecError, LabelError, PeerLost, RemoteError
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.router.calls import Calls
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.router.routing import Routing
from ding_lite.parallel.router.topics import KEY_ROOM, Outbox
from ding_lite.parallel.tree.event_flow import EventFlow, Origin
from ding_lite.parallel.tree.hop_queue import HopQueue, QueuedItem
from ding_lite.parallel.tree.routing_table import RoutingTable
from ding_lite.parallel.wire.codec import Encoded
from ding_lite.parallel.wire.messages import (
    ITEM,
    WITHDRAW,
    CallArrived,
    EventArrived,
    encode_call,
    encode_event,
    read_named,
)
from ding_lite.runtime.messaging.inbox import FINISH
from ding_lite.runtime.messaging.labels import check_labels, matches
from ding_lite.runtime.messaging.streams import UNCERTAIN_S, ItemId, Parcel, Streams

RELAYED = "ding_lite.relayed"
"""The event that wraps a relayed event."""
ONWARD = "ding_lite.onward"
"""The call that wraps a call to a third node."""

RETRY_S = 2.0
"""Seconds in which no items are sent to a node that a hub has reported as lost."""

MAX_KEY_BYTES = 16 * 2**20
"""The most bytes of different topics, with the labels of their receivers, of one sender."""
_LABELS = "ding_lite/labels"
"""The topic of a node's labels, if the specs do not have the labels of all nodes."""
_DONE, _RAISED, _LOST = "done", "raised", "lost"
_ADDRESSED_KEY = msgspec.json.Decoder(tuple[int, list[str] | None, str])


class Relay(Routing):
    """Route messages of a node in a tree, and relay those of other nodes."""

    reaches_beyond_peers = True

    def __init__(
        self,
        spec: NodeSpec,
        links: Links,
        calls: Calls,
        streams: Streams,
        outbox: Outbox,
        clock: Clock,
    ) -> None:
        super().__init__(links, calls)
        self._spec = spec
        self._outbox = outbox
        self._clock = clock
        self._streams = streams
        self._table = RoutingTable(spec)
        self._flow = EventFlow(links)
        self._hop_queue = HopQueue(self._send_onward, self._is_there)
        self._absent: dict[int, Deadline] = {}
        self._missing: dict[int, Deadline] = {}
        self._given_up: defaultdict[int, list[ItemId]] = defaultdict(list)
        self._known: defaultdict[int, set[str]] = defaultdict(set)
        self._known_bytes: Counter[int] = Counter()
        self._early: defaultdict[int, list[Callable[[], None]]] = defaultdict(list)
        calls.serve(ONWARD, self._relay_call)
        calls.onward = self._ask
        if not spec.world:
            self._publish_labels()

    # -- reachable nodes ---------------------------------------------------------------------

    def reaches(self, patterns: Iterable[str]) -> list[int]:
        return [node for node in self._table.matching(patterns) if self._is_reached(node)]

    def leads_to(self, peer: int, patterns: Iterable[str]) -> bool:
        return peer in self._table.next_hops(patterns)

    @property
    def far(self) -> list[int]:
        return [node for node in self._table.nodes if self._is_reached(node)]

    @property
    def labels(self) -> dict[int, frozenset[str]]:
        return dict(self._table.labels)

    def _publish_labels(self) -> None:
        slots = self._outbox.fill({_LABELS: sorted(self._spec.labels)})
        with self._links.lock:
            for session in self._links.sessions.values():
                session.state.offer(self.addressed(slots, ["*"]))

    def _is_reached(self, node: int) -> bool:
        is_far = node not in self._spec.peers and node != self._spec.node_id
        return is_far and node not in self._absent and self._is_there(node)

    def _is_there(self, node: int) -> bool:
        session = self._links.sessions.get(self._table.next_hop(node))
        return session is not None and session.is_open

    # -- state --------------------------------------------------------------------------

    def addressed(self, slots: Mapping[str, Any], to: Sequence[str] | None) -> dict[str, Any]:
        """Return slots under keys that include the sender and the labels of the receivers."""
        return {_address_key(self._spec.node_id, to, key): slot for key, slot in slots.items()}

    def take_state(self, peer: int, values: dict[str, Any]) -> dict[int, dict[str, Any]]:
        try:
            return self._take_state(peer, values)
        except (CodecError, LabelError) as error:
            self._links.dropped.add(str(error))
            return {}

    def _take_state(self, peer: int, values: dict[str, Any]) -> dict[int, dict[str, Any]]:
        own: dict[int, dict[str, Any]] = {}
        onward: dict[frozenset[int], dict[str, Any]] = {}
        for name, value in values.items():
            origin, to, key = self._read_addressed_key(peer, name)
            if key == _LABELS:
                self._learn(origin, value)
            elif to is None or matches(self._spec.labels, to):
                own.setdefault(origin, {})[key] = value
            hops = self._hops(peer, to)
            if hops:
                onward.setdefault(hops, {})[name] = value
        for hops, passed in onward.items():
            slots = self._outbox.fill(passed)
            with self._links.lock:
                for hop in hops:
                    self._links.sessions[hop].state.offer(slots)
        if onward:
            self._links.wake()
        return own

    def _learn(self, node: int, labels: Any) -> None:
        if not isinstance(labels, list):
            raise CodecError(f"Node {node} sends labels that are no list.")
        self._table.learn(node, check_labels(labels))
        self._streams.wake()  # a blocked sender may wait for such a receiver

    def _hops(self, peer: int, to: Sequence[str] | None) -> frozenset[int]:
        if to is not None:
            return self._table.next_hops(to) - {peer}
        return self._table.relay_hops(peer) if peer == self._table.parent else frozenset()

    def _read_addressed_key(self, peer: int, name: str) -> tuple[int, list[str] | None, str]:
        try:
            origin, to, key = _ADDRESSED_KEY.decode(name)
        except msgspec.MsgspecError as error:
            raise CodecError(f"A topic has no sender: {error}") from error
        sender = self._sender(peer, origin)
        known = self._known[sender]
        if name not in known:  # of each a value is kept, and matching its patterns takes time
            self._known_bytes[sender] += len(name)
            if len(name) > KEY_ROOM or self._known_bytes[sender] > MAX_KEY_BYTES:
                self._known_bytes[sender] -= len(name)
                raise CodecError(f"Node {sender} sends too many or too long topics and labels.")
            known.add(name)
        return sender, to, key

    def _sender(self, peer: int, origin: object) -> int:
        """Return the sender that a relayed message claims, if it is behind that peer."""
        is_other = origin in self._table.nodes and origin != self._spec.node_id
        if isinstance(origin, int) and is_other and self._table.next_hop(origin) == peer:
            return origin
        raise CodecError(
            f"Node {peer} relays a message of node {origin!r:.20}, which is not behind it."
        )

    # -- events ------------------------------------------------------------------------------

    def take_event(self, peer: int, came: EventArrived) -> tuple[int, EventArrived] | None:
        # None for a malformed event, and for a duplicate after the death of a hub.
        try:
            origin, came = self._read_event(peer, came)
        except CodecError as error:
            self._links.dropped.add(str(error))
            return None
        if origin.node != peer and not self._flow.is_new(origin):
            return None
        hops = self._table.relay_hops(peer)
        if hops and came.event != FINISH:  # each task emits FINISH itself
            args = (*origin, came.event, *came.args)
            encoded = encode_event(RELAYED, args, came.kwargs, by_hub=True)
            self._flow.pass_on(encoded, came.number, source=peer, hops=hops)
        return origin.node, came

    def _read_event(self, peer: int, came: EventArrived) -> tuple[Origin, EventArrived]:
        if came.event != RELAYED:
            who = self._links.sessions[peer].peer
            return Origin(peer, 0 if who is None else who.incarnation, came.number), came
        match came.args:
            case (origin, int(incarnation), int(number), str(event), *args):
                passed_on = EventArrived(event, tuple(args), came.kwargs, came.number)
                return Origin(self._sender(peer, origin), incarnation, number), passed_on
        raise CodecError("A relayed event has an origin and a name.")

    # -- calls -------------------------------------------------------------------------------

    def take_call(self, peer: int, call: CallArrived) -> None:
        is_passed_on = call.name == ONWARD and len(call.args) == 4
        if not is_passed_on or call.args[0] != self._spec.node_id:
            self._calls.take_call(peer, call)  # `_relay_call` handles it
            return
        _, origin, _, body = call.args
        try:
            asker = self._sender(peer, origin)
            own = CallArrived(call.number, *read_named(body, "A call"))
        except CodecError as error:
            self._links.dropped.add(str(error))
        else:
            self._calls.take_call(peer, own, asker=asker)

    def _ask(self, node: int, request: Encoded) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()  # as of a call without hops
        asked = self._pass_on(node, self._spec.node_id, 0, request)
        asked.add_done_callback(lambda done: _settle(answer, done.result(), node))
        return answer

    def _relay_call(self, peer: int, to: object, origin: object, credits: object, body: Any) -> Any:
        if not isinstance(to, int) or not isinstance(credits, int):
            raise CodecError("A relayed call has a receiver and credits.")
        sender = self._sender(peer, origin)
        name, args, _ = read_named(body, "A call")
        if name != ITEM:
            return self._pass_on(to, sender, credits, body)
        match args:
            case (int(incarnation), str(stream), int(number), int(), _) if credits > 0:
                return self._keep(
                    QueuedItem(ItemId(sender, incarnation, number), to, stream, credits, body)
                )
        raise CodecError("An item has the name of a stream and whole numbers.")

    def _pass_on(self, to: int, origin: int, credits: int, body: Any) -> Future[Any]:
        outcome: Future[Any] = Future()
        hop = self._next_hop(to)
        if hop is None:
            outcome.set_result([_LOST, f"the job has no node {to}.", to])
            return outcome
        request = encode_call(ONWARD, (to, origin, credits, body), {}, by_hub=True)

        def send() -> None:
            self._calls.send(hop, ONWARD, request).add_done_callback(
                lambda answer: outcome.set_result(self._outcome(answer, hop, is_last=hop == to))
            )

        with self._links.lock:
            is_early = self._links.sessions[hop].peer is None
            if is_early:  # children may be ready before the parent is
                self._early[hop].append(send)
        if not is_early:
            send()
        return outcome

    def _next_hop(self, node: int) -> int | None:
        hop = self._table.next_hop(node) if node in self._table.nodes else None
        return hop if hop in self._links.sessions else None

    def _outcome(self, answer: Future[Any], hop: int, *, is_last: bool) -> list[Any]:
        error = answer.exception()
        if error is None:
            return [_DONE, answer.result()] if is_last else _checked(answer.result())
        if isinstance(error, RemoteError):
            return [_RAISED, error.node_id, error.kind, str(error), error.remote_traceback]
        return [_LOST, f"node {self._spec.node_id} is not connected to node {hop}.", None]

    # -- items of streams --------------------------------------------------------------------

    def send_item(self, node: int, parcel: Parcel) -> Future[Any]:
        if node in self._links.sessions:
            return super().send_item(node, parcel)
        item_id = ItemId(self._spec.node_id, self._spec.incarnation, parcel.number)
        item = QueuedItem(item_id, node, parcel.stream, int(parcel.in_flight), parcel.body)
        answer: Future[Any] = Future()
        self._keep(item).add_done_callback(lambda done: self._settle_item(answer, done, node))
        return answer

    def _keep(self, item: QueuedItem) -> Future[Any]:
        hop = self._next_hop(item.to)
        if hop is None or self._links.sessions[hop].has_left:
            item.taken.set_result(_lost(item.to))
            return item.taken
        return self._hop_queue.keep(item)

    def _send_onward(self, item: QueuedItem) -> Future[Any]:
        outcome: Future[Any] = Future()

        def on_done(done: Future[Any]) -> None:
            answer = done.result()
            is_hop_lost = answer[0] == _LOST and answer[-1] is None
            outcome.set_result(None if is_hop_lost else answer)

        self._pass_on(item.to, item.item_id.node_id, item.credits, item.body).add_done_callback(
            on_done
        )
        return outcome

    def _settle_item(self, answer: Future[Any], done: Future[Any], node: int) -> None:
        outcome = done.result()
        if outcome[0] == _LOST:
            self._absent[node] = Deadline.after(RETRY_S, self._clock)
            self._streams.left(node)
        _settle(answer, outcome, node)

    # -- connections and deadlines; on the transport's thread ---------------------------------

    def joined(self, peer: int, *, is_new_incarnation: bool) -> None:
        if is_new_incarnation:
            self._flow.forget(peer)
        self._missing.pop(peer, None)
        for send in self._early.pop(peer, []):
            send()
        given_up = self._given_up.pop(peer, [])
        if not is_new_incarnation:
            for origin, incarnation in {item_id[:2] for item_id in given_up}:
                numbers = [
                    item_id.number for item_id in given_up if item_id[:2] == (origin, incarnation)
                ]
                self._pass_on(peer, origin, 0, [WITHDRAW, None, incarnation, numbers])
        self._hop_queue.resume(lambda to: self._table.next_hop(to) == peer)

    def gone(self, peer: int) -> None:
        if self._links.sessions[peer].has_left:
            self._hop_queue.give_up(lambda to: self._table.next_hop(to) == peer, _lost(peer))
        else:
            self._missing.setdefault(peer, Deadline.after(UNCERTAIN_S, self._clock))

    def stay(self) -> None:
        parent = self._table.parent
        if parent is None:
            return
        sessions = self._links.sessions
        with self._links.lock:
            Deadline.after(None, self._clock).wait(
                self._links.changed,
                lambda: (
                    self._links.is_drain_cancelled
                    or not sessions[parent].is_open
                    or not any(sessions[k].is_open for k in sessions if k != parent)
                ),
            )

    def tick(self) -> None:
        for peer in [peer for peer, uncertain in self._missing.items() if uncertain.expired]:
            self._given_up[peer] += self._hop_queue.give_up(partial(eq, peer), _lost(peer))
        for node in [node for node, pause in list(self._absent.items()) if pause.expired]:
            del self._absent[node]
            self._streams.joined(node, is_new_incarnation=True)


def _address_key(origin: int, to: Sequence[str] | None, key: str) -> str:
    """Return a key with the sender and the labels of the receivers.

    Example:
        >>> _address_key(3, ["learner"], "ctx/loss")
        '[3,["learner"],"ctx/loss"]'
    """
    patterns = None if to is None else [*map(str, to)]  # of numpy's, too
    name = msgspec.json.encode((origin, patterns, key)).decode()
    if len(name) > KEY_ROOM:
        raise LabelError(
            f"`to` has {len(patterns or ())} label patterns of {len(name)} characters with the "
            f"topic; hubs relay {KEY_ROOM} at most. Give patterns that match several nodes, such "
            f"as `collector.*`."
        )
    return name


def _lost(node: int) -> list[Any]:
    return [_LOST, "it is gone.", node]


def _checked(outcome: Any) -> list[Any]:
    match outcome:
        case ["done", _] | ["lost", str(), _]:
            return list(outcome)
        case ["raised", int(), str(), str(), str()]:
            return list(outcome)
    return [_LOST, "a hub has sent an answer that this version cannot read.", -1]


def _settle(answer: Future[Any], outcome: list[Any], node: int) -> None:
    if outcome[0] == _DONE:
        answer.set_result(outcome[1])
    elif outcome[0] == _RAISED:
        _, at, kind, text, trace = outcome
        answer.set_exception(RemoteError(text, node_id=at, kind=kind, remote_traceback=trace))
    else:
        answer.set_exception(PeerLost(f"Node {node} cannot be called: {outcome[1]}"))


class TreeRouter(NodeRouter):
    """A router that relays messages between its peers."""

    def _make_routing(self) -> Relay:
        others = Outbox(self.node_id, self._shared_sender, self._clock, relays=True)
        return Relay(self._spec, self.links, self._calls, self._streams, others, self._clock)
