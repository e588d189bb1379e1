"""Draw the messages of a node on a time line, as slices and arrows between them.

The arrow of an event, a stream item or a call begins in a slice of the thread that sends it, passes
the thread that reads it at the receiver, and ends where the receiver's program gets it: in a
listener, in `receive`, in a handler. The arrow of a ctx begins where it was published, and ends
where it is read, as the program can see it from then on. The key of an arrow is the sender, its
incarnation and the number of the message, which both nodes know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from time import monotonic_ns
from typing import Any

from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.wire.messages import CallArrived, EventArrived, ReplyArrived
from ding_lite.runtime.trace.messages import Slice, Traced, TracedEvent, Tracer, arrow_key

SERVICES = "ding_lite."


class MessageTrace(Traced):
    """Draws the messages of a node, while it has a tracer."""

    def __init__(self, spec: NodeSpec, incarnation_of: Callable[[int], int]) -> None:
        super().__init__(None if spec.began is None else int(spec.began * 1e9))
        self._me = spec.node_id, spec.incarnation
        self._node_id = spec.node_id
        self._incarnation_of = incarnation_of
        self._published: dict[int, tuple[Slice, int]] = {}
        self._asked: set[int] = set()

    # -- sent --------------------------------------------------------------

    def emitted(self, event: str, began_ns: int, sent: Iterable[tuple[int, int, int]]) -> None:
        """Draw an event that is sent to nodes, with peer, number and time of each."""
        if (tracer := self._since(began_ns)) is not None:
            where = tracer.slice(f"emit {event}", began_ns)
            for peer, number, at_ns in sent:
                key = arrow_key("event", self._me, peer, number)
                tracer.arrow("s", "event", key, where, at_ns)

    def published(self, began_ns: int, peers: Iterable[int]) -> None:
        if (tracer := self._since(began_ns)) is not None:
            where = tracer.slice("publish ctx", began_ns)
            self._published.update(dict.fromkeys(peers, (where, where.ended_ns)))

    def state_sent(self, peer: int, number: int) -> None:
        published, tracer = self._published.pop(peer, None), self.tracer
        if tracer is not None and published is not None:
            tracer.arrow("s", "ctx", arrow_key("ctx", self._me, peer, number), *published)

    def asked(self, name: str, began_ns: int, number: int) -> None:
        tracer = self._since(began_ns)
        if tracer is not None and not name.startswith(SERVICES):
            where = tracer.slice(f"call {name}", began_ns)
            tracer.arrow("s", "call", arrow_key("call", self._me, number), where, began_ns)
            self._asked.add(number)

    def item_sent(self, stream: str, began_ns: int, number: int, at_ns: int) -> None:
        tracer = self._since(began_ns)
        if tracer is not None and number:
            where = tracer.slice(f"send {stream}", began_ns)
            tracer.arrow("s", "item", arrow_key("item", self._me, number), where, at_ns)

    # -- received ------------------------------------------------------------------

    def event_came(self, peer: int, came: EventArrived, began_ns: int) -> str:
        """Draw a received event; return its name, with which its listener ends the arrow."""
        if (tracer := self._since(began_ns)) is None:
            return came.event
        key = arrow_key("event", self._process_of(peer), self._node_id, came.number)
        where = tracer.slice(f"{came.event} from node {peer}", began_ns)
        tracer.arrow("t", "event", key, where, began_ns)
        return TracedEvent(came.event, tracer, key)

    def state_came(self, peer: int, number: int, began_ns: int) -> None:
        if (tracer := self._since(began_ns)) is not None:
            key = arrow_key("ctx", self._process_of(peer), self._node_id, number)
            where = tracer.slice(f"ctx from node {peer}", began_ns)
            tracer.arrow("f", "ctx", key, where, began_ns)

    def answered(self, peer: int, call: CallArrived, began_ns: int) -> None:
        tracer = self._since(began_ns)
        if tracer is not None and not call.name.startswith(SERVICES):
            asker = self._process_of(peer)
            where = tracer.slice(f"answer {call.name}", began_ns)
            tracer.arrow("f", "call", arrow_key("call", asker, call.number), where, began_ns)
            key = arrow_key("answer", asker, call.number)
            tracer.arrow("s", "answer", key, where, where.ended_ns)

    def answer_came(self, peer: int, reply: ReplyArrived, began_ns: int) -> None:
        is_drawn = reply.number in self._asked
        self._asked.discard(reply.number)
        tracer = self._since(began_ns)
        if tracer is not None and is_drawn:
            where = tracer.slice(f"answer from node {peer}", began_ns)
            key = arrow_key("answer", self._me, reply.number)
            tracer.arrow("f", "answer", key, where, began_ns)

    def item_came(
        self, peer: int, args: tuple[Any, ...], taken: Future[Any], began_ns: int
    ) -> None:
        """Draw a received item, and the point at which the program takes it."""
        tracer = self._since(began_ns)
        match args:
            case (int(incarnation), str(stream), int(number), *_) if tracer is not None:
                key = arrow_key("item", (peer, incarnation), number)
                where = tracer.slice(f"item of {stream} from node {peer}", began_ns)
                tracer.arrow("t", "item", key, where, began_ns)
                taken.add_done_callback(lambda _taken: _draw_taking(tracer, stream, key))

    def _since(self, began_ns: int) -> Tracer | None:
        """Return the tracer, if tracing was on at that time and still is."""
        return self.tracer if began_ns else None

    def _process_of(self, peer: int) -> tuple[int, int]:
        return peer, self._incarnation_of(peer)


def _draw_taking(tracer: Tracer, stream: str, key: str) -> None:
    now = monotonic_ns()
    tracer.arrow("f", "item", key, tracer.slice(f"take {stream}", now), now)
