"""What a node of a tree does for the others: it passes on what is not for it alone.

In a tree hubs take the place of links. What a node says to all of its peers goes on: state
and events from above to all below, and events from below up to the root. What it says to some
goes to those and to nobody else, wherever they are: state with labels, items and calls.

- State: each hub keeps a slot for each key of each sender, as if the value were its own, and the
  newest wins there as everywhere. So a slow branch never holds up another one.
- Events: a hub passes each on once and in order, and acknowledges it when those that it goes to
  have done so (`EventFlow`). So none is lost when a hub is killed.
- Items of streams are kept on their way until a program has taken them (`HopQueue`).
- A call asks the next node, which asks the next one. The answer says where it comes from.

A hub whose program has ended stays until all below it have left: it is their way to the others.

`Branches` knows who is where; the sessions carry it, as what the hub itself has to say.
"""

from __future__ import annotations

from collections import defaultdict
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
from ding_lite.parallel.router.call_endpoint import CallEndpoint
from ding_lite.parallel.router.ctx_outbox import CtxOutbox
from ding_lite.parallel.router.item_streams import ITEM, WITHDRAW
from ding_lite.parallel.router.routing import DirectRouting
from ding_lite.parallel.tree.branches import Branches
from ding_lite.parallel.tree.event_flow import EventFlow, Origin
from ding_lite.parallel.tree.hop_queue import HopQueue, ItemId, QueuedItem
from ding_lite.parallel.wire.codec import Encoded
from ding_lite.parallel.wire.messages import (
    CallArrived,
    EventArrived,
    encode_call,
    encode_event,
    read_named,
)
from ding_lite.runtime.messaging.inbox import FINISH
from ding_lite.runtime.messaging.labels import check_labels, matches
from ding_lite.runtime.messaging.streams import DOUBT_S, Parcel, Streams

RELAYED = "ding_lite.relayed"
"""The event by which a hub passes on another node's."""
ONWARD = "ding_lite.onward"
"""The name under which nodes call each other with a call for a third one."""

RETRY_S = 2.0
"""How long no items are sent to a node of which a hub has said that it is lost."""

_LABELS = "ding_lite.labels"
"""The key under which a node's labels travel, where none was told those of the others."""
_DONE, _RAISED, _LOST = "done", "raised", "lost"
_SIGNATURE = msgspec.json.Decoder(tuple[int, list[str] | None, str])


class Relay(DirectRouting):
    """Passes on what comes to a node of a tree, and reaches the nodes beyond its peers.

    Args:
        spec: Who this node is.
        links: Whom it is connected to.
        endpoint: By what it calls them.
        outbox: Keeps the ctx values of others until they are sent.
        clock: What waits are measured by.
    """

    passes_on = True

    def __init__(
        self,
        spec: NodeSpec,
        links: Links,
        endpoint: CallEndpoint,
        outbox: CtxOutbox,
        clock: Clock,
    ) -> None:
        super().__init__(links, endpoint)
        self._spec = spec
        self._outbox = outbox
        self._clock = clock
        self._streams: Streams | None = None
        self._branches = Branches(spec)
        self._flow = EventFlow(links)
        self._hop_queue = HopQueue(self._carry, self._is_there)
        self._absent: dict[int, Deadline] = {}
        self._missing: dict[int, Deadline] = {}
        self._given_up: defaultdict[int, list[ItemId]] = defaultdict(list)
        self._early: defaultdict[int, list[Callable[[], None]]] = defaultdict(list)
        endpoint.serve(ONWARD, self._call_came)
        endpoint.onward = self._ask
        if not spec.world:
            self._tell_labels()

    # -- whom this node reaches --------------------------------------------------------------

    def reaches(self, patterns: Iterable[str]) -> list[int]:
        """Return the nodes beyond the peers that match, and to whom there is a way."""
        return [node for node in self._branches.matching(patterns) if self._is_reached(node)]

    def leads_to(self, peer: int, patterns: Iterable[str]) -> bool:
        """Tell whether a peer's labels match, or those of a node behind it."""
        return peer in self._branches.towards(patterns)

    @property
    def far(self) -> list[int]:
        """The nodes beyond the peers to whom there is a way."""
        return [node for node in self._branches.nodes if self._is_reached(node)]

    @property
    def labels(self) -> dict[int, frozenset[str]]:
        """The labels of the nodes, as far as they are known."""
        return dict(self._branches.labels)

    def _tell_labels(self) -> None:
        """Let all nodes know the labels of this one, as none of them was told at its start."""
        slots = self._outbox.fill({_LABELS: sorted(self._spec.labels)})
        with self._links.changed:
            for session in self._links.sessions.values():
                session.offer(self.signed(slots, ["*"]))

    def _is_reached(self, node: int) -> bool:
        is_far = node not in self._spec.peers and node != self._spec.node_id
        return is_far and node not in self._absent and self._is_there(node)

    def _is_there(self, node: int) -> bool:
        session = self._links.sessions.get(self._branches.way_to(node))
        return session is not None and session.is_open

    # -- state -------------------------------------------------------------------------------

    def signed(self, slots: Mapping[str, Any], to: Sequence[str] | None) -> dict[str, Any]:
        """Return this node's slots under keys that also say whose they are, and whom they are for.

        Example:
            >>> _sign(3, ["learner"], "loss")
            '[3,["learner"],"loss"]'
        """
        return {_sign(self._spec.node_id, to, key): slot for key, slot in slots.items()}

    def take_ctx(self, peer: int, values: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Pass on ctx values that have come; return those for this node, by who has sent them."""
        try:
            return self._take_ctx(peer, values)
        except (CodecError, LabelError) as error:
            self._links.reject(str(error))
            return {}

    def _take_ctx(self, peer: int, values: dict[str, Any]) -> dict[int, dict[str, Any]]:
        own: dict[int, dict[str, Any]] = {}
        onward: dict[frozenset[int], dict[str, Any]] = {}
        for name, value in values.items():
            origin, to, key = self._read_signature(peer, name)
            if key == _LABELS:
                self._learn(origin, value)
            elif to is None or matches(self._spec.labels, to):
                own.setdefault(origin, {})[key] = value
            ways = self._ways(peer, to)
            if ways:
                onward.setdefault(ways, {})[name] = value
        for ways, passed in onward.items():
            slots = self._outbox.fill(passed)
            with self._links.changed:
                for way in ways:
                    self._links.sessions[way].offer(slots)
        if onward:
            self._links.wake()
        return own

    def _learn(self, node: int, labels: Any) -> None:
        self._branches.learn(node, check_labels(labels))
        if self._streams is not None:
            self._streams.wake()  # one of them may be whom somebody sends to

    def _ways(self, peer: int, to: Sequence[str] | None) -> frozenset[int]:
        """Return the peers that get a value which has come from one of them."""
        if to is not None:
            return self._branches.towards(to) - {peer}
        return self._branches.onwards(peer) if peer == self._branches.parent else frozenset()

    def _read_signature(self, peer: int, name: str) -> tuple[int, list[str] | None, str]:
        try:
            origin, to, key = _SIGNATURE.decode(name)
        except msgspec.MsgspecError as error:
            raise CodecError(f"A ctx value does not say who has sent it: {error}") from error
        return self._sender(peer, origin), to, key

    def _sender(self, peer: int, origin: object) -> int:
        """Return who is said to have sent what a peer passes on, if it can come that way.

        Raises:
            CodecError: It cannot.
        """
        is_other = origin in self._branches.nodes and origin != self._spec.node_id
        if isinstance(origin, int) and is_other and self._branches.way_to(origin) == peer:
            return origin
        raise CodecError(
            f"Node {peer} passes on what it says node {origin!r:.20} has sent, which is not "
            f"behind it."
        )

    # -- events ------------------------------------------------------------------------------

    def take_event(self, peer: int, came: EventArrived) -> tuple[int, EventArrived] | None:
        """Pass on an event that has come; return the node that has emitted it, and the event.

        None of what is no event, or has come before over a hub that was killed.
        """
        try:
            origin, came = self._read_event(peer, came)
        except CodecError as error:
            self._links.reject(str(error))
            return None
        if origin.node != peer and not self._flow.is_new(origin):
            return None
        ways = self._branches.onwards(peer)
        if ways and came.event != FINISH:  # each task spreads that itself
            encoded = encode_event(RELAYED, (*origin, came.event, *came.args), came.kwargs)
            self._flow.pass_on(encoded, came.number, source=peer, ways=ways)
        return origin.node, came

    def _read_event(self, peer: int, came: EventArrived) -> tuple[Origin, EventArrived]:
        if came.event != RELAYED:
            who = self._links.sessions[peer].peer
            return Origin(peer, 0 if who is None else who.incarnation, came.number), came
        match came.args:
            case (origin, int(incarnation), int(number), str(event), *args):
                passed_on = EventArrived(event, tuple(args), came.kwargs, came.number)
                return Origin(self._sender(peer, origin), incarnation, number), passed_on
        raise CodecError("An event that is passed on has an origin and a name.")

    # -- calls -------------------------------------------------------------------------------

    def take_call(self, peer: int, call: CallArrived) -> None:
        """Answer a call that others have passed on, if this node is the one that is asked."""
        is_passed_on = call.name == ONWARD and len(call.args) == 4
        if not is_passed_on or call.args[0] != self._spec.node_id:
            self._endpoint.take(peer, call)  # `_call_came` passes it on
            return
        _, origin, _, body = call.args
        try:
            asker = self._sender(peer, origin)
            own = CallArrived(call.number, *read_named(body, "A call"))
        except CodecError as error:
            self._links.reject(str(error))
        else:
            self._endpoint.take(peer, own, asker=asker)

    def _ask(self, node: int, request: Encoded) -> Future[Any]:
        """Ask a node beyond the peers; the future gets its answer."""
        answer: Future[Any] = Future()
        asked = self._pass_on(node, self._spec.node_id, 0, request)
        asked.add_done_callback(lambda done: _settle(answer, done.result(), node))
        return answer

    def _call_came(self, peer: int, to: object, origin: object, credits: object, body: Any) -> Any:
        """Pass on a call for another node; the future gets what has become of it."""
        if not isinstance(to, int) or not isinstance(credits, int):
            raise CodecError("A call that is passed on has a receiver and credits.")
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
        way = self._way_to(to)
        if way is None:
            outcome.set_result([_LOST, f"the job has no node {to}.", to])
            return outcome
        request = encode_call(ONWARD, (to, origin, credits, body), {})

        def send() -> None:
            self._endpoint.send(way, ONWARD, request).add_done_callback(
                lambda answer: outcome.set_result(self._outcome(answer, way, is_last=way == to))
            )

        with self._links.changed:
            is_early = self._links.sessions[way].peer is None
            if is_early:  # those below are ready before the way upwards is
                self._early[way].append(send)
        if not is_early:
            send()
        return outcome

    def _way_to(self, node: int) -> int | None:
        """Return the peer that leads to a node; None where there is no such node."""
        way = self._branches.way_to(node) if node in self._branches.nodes else None
        return way if way in self._links.sessions else None

    def _outcome(self, answer: Future[Any], way: int, *, is_last: bool) -> list[Any]:
        """Put what a peer has answered, or why it has not, into a value that travels."""
        error = answer.exception()
        if error is None:
            return [_DONE, answer.result()] if is_last else _checked(answer.result())
        if isinstance(error, RemoteError):
            return [_RAISED, error.node_id, error.kind, str(error), error.remote_traceback]
        return [_LOST, f"node {self._spec.node_id} is not connected to node {way}.", None]

    # -- items of streams --------------------------------------------------------------------

    def serve(self, streams: Streams) -> None:
        """Carry items for these streams."""
        self._streams = streams

    def carry(self, node: int, parcel: Parcel) -> Future[Any]:
        """Take an item to a node beyond the peers; the future is done when it is taken."""
        item_id = ItemId(self._spec.node_id, self._spec.incarnation, parcel.number)
        item = QueuedItem(item_id, node, parcel.stream, parcel.in_flight, parcel.body)
        answer: Future[Any] = Future()
        self._keep(item).add_done_callback(lambda done: self._settle_item(answer, done, node))
        return answer

    def _keep(self, item: QueuedItem) -> Future[Any]:
        way = self._way_to(item.to)
        if way is None or self._links.sessions[way].has_left:
            item.taken.set_result(_lost(item.to))
            return item.taken
        return self._hop_queue.keep(item)

    def _carry(self, item: QueuedItem) -> Future[Any]:
        outcome: Future[Any] = Future()

        def on_done(done: Future[Any]) -> None:
            said = done.result()
            is_own = said[0] == _LOST and said[-1] is None  # the next node, not the last one
            outcome.set_result(None if is_own else said)

        self._pass_on(item.to, item.item_id.origin, item.credits, item.body).add_done_callback(
            on_done
        )
        return outcome

    def _settle_item(self, answer: Future[Any], done: Future[Any], node: int) -> None:
        outcome = done.result()
        if outcome[0] == _LOST and self._streams is not None:
            self._absent[node] = Deadline.after(RETRY_S, self._clock)
            self._streams.left(node)
        _settle(answer, outcome, node)

    # -- who comes and goes, and the passing of time; on the transport's thread ---------------

    def joined(self, peer: int, *, is_new_incarnation: bool) -> None:
        """Pass on what waits for a peer that is there, or for those behind it."""
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
        self._hop_queue.resume(lambda to: self._branches.way_to(to) == peer)

    def gone(self, peer: int) -> None:
        """Keep what waits for a peer that is lost; of one that has left, give it up."""
        if self._links.sessions[peer].has_left:
            self._hop_queue.give_up(lambda to: self._branches.way_to(to) == peer, _lost(peer))
        else:
            self._missing.setdefault(peer, Deadline.after(DOUBT_S, self._clock))

    def stay(self) -> None:
        """Wait until all below have left, as long as this node is their way to those above."""
        parent = self._branches.parent
        if parent is None:
            return
        sessions = self._links.sessions
        with self._links.changed:
            Deadline.after(None, self._clock).wait(
                self._links.changed,
                lambda: (
                    self._links.is_hurried
                    or not sessions[parent].is_open
                    or not any(sessions[k].is_open for k in sessions if k != parent)
                ),
            )

    def turn(self) -> None:
        """Let others take what a peer has not, and ask those again that were not there."""
        for peer in [peer for peer, doubt in self._missing.items() if doubt.expired]:
            self._given_up[peer] += self._hop_queue.give_up(partial(eq, peer), _lost(peer))
        for node in [node for node, pause in list(self._absent.items()) if pause.expired]:
            del self._absent[node]
            if self._streams is not None:
                self._streams.joined(node, is_new_incarnation=True)


def _sign(origin: int, to: Sequence[str] | None, key: str) -> str:
    return msgspec.json.encode((origin, to, key)).decode()


def _lost(node: int) -> list[Any]:
    return [_LOST, "it is gone.", node]


def _checked(outcome: Any) -> list[Any]:
    match outcome:
        case ["done", _] | ["lost", str(), _]:
            return list(outcome)
        case ["raised", int(), str(), str(), str()]:
            return list(outcome)
    return [_LOST, "A hub has answered in a way that this version does not understand.", -1]


def _settle(answer: Future[Any], outcome: list[Any], node: int) -> None:
    if outcome[0] == _DONE:
        answer.set_result(outcome[1])
    elif outcome[0] == _RAISED:
        _, at, kind, text, trace = outcome
        answer.set_exception(RemoteError(text, node_id=at, kind=kind, remote_traceback=trace))
    else:
        answer.set_exception(PeerLost(f"Node {node} cannot be asked: {outcome[1]}"))
