"""The messages of a node on a time line: which slices there are, and which arrows between them.

An event, an item of a stream and a call begin in a slice of the thread that sends them, pass the
transport's thread of the node that they are for, and end where its program has them: in a
listener, at `receive`, in a handler. A ctx begins where it was published and ends at the
transport's thread: it is read whenever the program looks. What both nodes know of a message (who
sends it, in which life, and its number) is the key of its arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from ding_lite.parallel.messages import CallArrived, CtxArrived, EventArrived, ReplyArrived
from ding_lite.parallel.topology import NodeSpec
from ding_lite.runtime.tracing import Slice, Traced, TracedEvent, arrow_key

SERVICES = "ding_lite."
"""Begins the names of calls that programs do not make themselves."""


class Drawing(Traced):
    """Draws the messages of a node, while it has a tracer.

    Args:
        spec: Who this node is.
        epoch_of: Tells which life of a neighbour speaks.
    """

    def __init__(self, spec: NodeSpec, epoch_of: Callable[[int], int]) -> None:
        super().__init__(None if spec.began is None else int(spec.began * 1e9))
        self._me = spec.node_id, spec.epoch
        self._node_id = spec.node_id
        self._epoch_of = epoch_of
        self._published: dict[int, tuple[Slice, int]] = {}
        self._asked: set[int] = set()

    # -- what this node sends --------------------------------------------------------------

    def emitted(self, event: str, began_ns: int, sent: Iterable[tuple[int, int, int]]) -> None:
        """Draw an event that goes to nodes, under these numbers, since these instants."""
        if self.tracer is not None and began_ns:
            where = self.tracer.slice(f"emit {event}", began_ns)
            for peer, number, at_ns in sent:
                key = arrow_key("event", self._me, peer, number)
                self.tracer.arrow("s", "event", key, where, at_ns)

    def published(self, began_ns: int, peers: Iterable[int]) -> None:
        """Draw that values of the ctx were offered to nodes."""
        if self.tracer is not None and began_ns:
            where = self.tracer.slice("publish ctx", began_ns)
            self._published.update(dict.fromkeys(peers, (where, where.ended_ns)))

    def ctx_sent(self, peer: int, number: int) -> None:
        """Draw that a node is sent what was offered last."""
        published = self._published.pop(peer, None)
        if self.tracer is not None and published is not None:
            key = arrow_key("ctx", self._me, peer, number)
            self.tracer.arrow("s", "ctx", key, *published)

    def asked(self, name: str, began_ns: int, number: int) -> None:
        """Draw that another node is asked something."""
        if self.tracer is not None and began_ns and not name.startswith(SERVICES):
            where = self.tracer.slice(f"call {name}", began_ns)
            self.tracer.arrow("s", "call", arrow_key("call", self._me, number), where, began_ns)
            self._asked.add(number)

    def item_sent(self, stream: str, began_ns: int, number: int, at_ns: int) -> None:
        """Draw that an item was sent; before that it may have waited for room."""
        if self.tracer is not None and began_ns and number:
            where = self.tracer.slice(f"send {stream}", began_ns)
            self.tracer.arrow("s", "item", arrow_key("item", self._me, number), where, at_ns)

    # -- what comes to it ------------------------------------------------------------------

    def event_came(self, peer: int, came: EventArrived, began_ns: int) -> str:
        """Draw that an event has come; return its name, with which its listener ends the arrow."""
        if self.tracer is None or not began_ns:
            return came.event
        sender = peer, self._epoch_of(peer)
        key = arrow_key("event", sender, self._node_id, came.number)
        where = self.tracer.slice(f"{came.event} from node {peer}", began_ns)
        self.tracer.arrow("t", "event", key, where, began_ns)
        return TracedEvent(came.event, self.tracer, key)

    def ctx_came(self, peer: int, came: CtxArrived, began_ns: int) -> None:
        """Draw that another node's ctx has come."""
        if self.tracer is not None and began_ns:
            where = self.tracer.slice(f"ctx from node {peer}", began_ns)
            sender = peer, self._epoch_of(peer)
            key = arrow_key("ctx", sender, self._node_id, came.number)
            self.tracer.arrow("f", "ctx", key, where, began_ns)

    def answered(self, peer: int, call: CallArrived, began_ns: int) -> None:
        """Draw that a handler has run for another node."""
        if self.tracer is not None and began_ns and not call.name.startswith(SERVICES):
            asker = peer, self._epoch_of(peer)
            where = self.tracer.slice(f"answer {call.name}", began_ns)
            self.tracer.arrow("f", "call", arrow_key("call", asker, call.number), where, began_ns)
            key = arrow_key("answer", asker, call.number)
            self.tracer.arrow("s", "answer", key, where, where.ended_ns)

    def answer_came(self, peer: int, reply: ReplyArrived, began_ns: int) -> None:
        """Draw that an answer has come to a call that was drawn."""
        is_drawn = reply.number in self._asked
        self._asked.discard(reply.number)
        if self.tracer is not None and is_drawn:
            where = self.tracer.slice(f"answer from node {peer}", began_ns)
            key = arrow_key("answer", self._me, reply.number)
            self.tracer.arrow("f", "answer", key, where, began_ns)

    def item_came(
        self, peer: int, args: tuple[Any, ...], taken: Future[Any], began_ns: int
    ) -> None:
        """Draw that an item has come, and where the program takes it."""
        tracer = self.tracer
        match args:
            case (int(life), str(stream), int(number), *_) if tracer is not None and began_ns:
                key = arrow_key("item", (peer, life), number)
                where = tracer.slice(f"item of {stream} from node {peer}", began_ns)
                tracer.arrow("t", "item", key, where, began_ns)

                def draw_end(_taken: Future[Any]) -> None:
                    now = self.now()
                    if self.tracer is not None:
                        self.tracer.arrow(
                            "f", "item", key, self.tracer.slice(f"take {stream}", now), now
                        )

                taken.add_done_callback(draw_end)
