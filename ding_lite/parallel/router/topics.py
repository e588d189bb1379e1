"""Send and receive the values of topics: the newest value of each topic wins."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ding_lite.clock import Clock
from ding_lite.errors import CodecError
from ding_lite.log import Throttle
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.memory.segments import Published
from ding_lite.parallel.memory.shared_values import SharedReceiver, SharedSender
from ding_lite.parallel.observe.message_trace import MessageTrace
from ding_lite.parallel.router.routing import Routing
from ding_lite.parallel.wire.arrays import shorten
from ding_lite.parallel.wire.codec import Encoded, decode, encode
from ding_lite.parallel.wire.messages import StateArrived
from ding_lite.runtime.context import is_key
from ding_lite.runtime.messaging.inbox import Inbox
from ding_lite.runtime.messaging.labels import matches
from ding_lite.runtime.messaging.subscription import CTX, LONGEST_TOPIC

logger = logging.getLogger(__name__)

MAX_TOPICS = 10_000
"""The most topics of one sender, keys of its ctx included."""
_UNCHANGING = (type(None), bool, float)
_LONG_TEXT = 4096
KEY_ROOM = 8192
"""The most bytes of a topic, with the labels of its receivers."""


class Outbox:
    """Turn values of topics into slots that sessions keep until they are sent.

    Those that a hub `relays` have been checked by their sender; their keys have receivers, too.
    """

    def __init__(
        self, node_id: int, sender: SharedSender, clock: Clock, *, relays: bool = False
    ) -> None:
        self._node_id = node_id
        self._sender = sender
        self._relays = relays
        self._newest: dict[str, Any] = {}
        self._throttle = Throttle(logger, clock)

    def fill(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return slots; a value that cannot be encoded is left out, with one warning a topic."""
        slots: dict[str, Any] = {}
        for topic, value in values.items():
            try:
                slots[topic] = self._slot(topic, value)
            except (CodecError, MemoryError) as error:
                name = name_of(topic)
                self._throttle.once(
                    logging.WARNING,
                    f"stays home {name}",
                    "%s stays on node %d: %s `task.share` chooses the keys to send.",
                    name,
                    self._node_id,
                    error,
                )
        self._newest |= slots
        return slots

    def encode(self, topic: str, value: Any) -> dict[str, Any]:
        slots = {topic: self._slot(topic, value)}
        self._newest |= slots
        return slots

    def _slot(self, topic: str, value: Any) -> Any:
        if not self._relays:
            self._check(topic)
        if _may_wait(value):
            return value
        name = f"ctx[{topic[len(CTX) :]!r}]" if topic.startswith(CTX) else topic
        encoded = encode(value, borrow=True, name=name, room=KEY_ROOM)
        return self._sender.keep(topic, encoded) if encoded.buffers else encoded

    def _check(self, topic: object) -> None:
        """Refuse an invalid topic here, rather than on the transport's thread."""
        if type(topic) is not str or len(topic) > LONGEST_TOPIC:
            raise CodecError(
                f"a topic, or a key of ctx that is sent, is a str of at most {LONGEST_TOPIC} "
                f"characters, not {shorten(topic)}."
            )
        if not topic.isascii():
            encode(topic, name="topic")
        if topic not in self._newest and len(self._newest) >= MAX_TOPICS:
            raise CodecError(
                f"{name_of(topic)} is one too many: a node publishes {MAX_TOPICS:,} topics at "
                f"most, the keys of its ctx included. Publish a dict under one topic."
            )

    def newest(self, topic: str) -> Any:
        """Return the last value of a topic, or None; tensors are copies, arrays read-only."""
        slot = self._newest.get(topic)
        value = slot.encoded if isinstance(slot, Published) else slot
        return decode(value.meta, value.buffers) if isinstance(value, Encoded) else value


class Topics:
    """Offer the topics of this node to its peers, and deliver theirs to the inbox.

    Values for certain labels, and with `keeps_offers` all values, are also kept for nodes that
    join later, or that take a place with other labels.
    """

    def __init__(
        self,
        links: Links,
        routing: Routing,
        inbox: Inbox,
        traced: MessageTrace,
        *,
        keeps_offers: bool,
    ) -> None:
        self._links = links
        self._routing = routing
        self._inbox = inbox
        self._traced = traced
        self._keeps_offers = keeps_offers
        self._offered: dict[str, tuple[tuple[str, ...] | None, Any]] = {}
        self._known: dict[int, set[str]] = {}
        self._shared_receiver = SharedReceiver(self._deliver_shared, links.dropped.add)

    def offer(self, slots: Mapping[str, Any], patterns: tuple[str, ...] | None) -> None:
        """Offer slots to the connected nodes that label patterns match; None matches all."""
        began_ns, peers, routing = self._traced.now(), [], self._routing
        slots = routing.addressed(slots, patterns)
        with self._links.lock:
            for key, slot in slots.items():
                if self._keeps_offers or patterns is not None or key in self._offered:
                    self._offered[key] = patterns, slot
            for peer, session in self._links.sessions.items():
                if patterns is None or routing.leads_to(peer, patterns):
                    session.state.offer(slots)
                    peers.append(peer)
            self._traced.published(began_ns, peers)
        self._links.wake()

    def offer_newest(self, peer: int, labels: frozenset[str]) -> None:
        with self._links.lock:
            offered = self._offered.items()
            slots = {k: v for k, (to, v) in offered if to is None or matches(labels, to)}
            if (session := self._links.sessions.get(peer)) is not None:
                session.state.offer(slots)
        self._links.wake()

    def take(self, peer: int, arrival: StateArrived) -> None:
        """Deliver values that have arrived; values in shared memory are read on another thread."""
        if arrival.owes_credit or self._shared_receiver.is_busy:
            self._shared_receiver.put(peer, arrival.values, arrival.owes_credit)
        else:
            self._deliver(peer, arrival.values)

    def forget(self, peer: int) -> None:
        self._shared_receiver.forget(peer)

    def close(self) -> None:
        self._shared_receiver.close()

    def _deliver_shared(self, peer: int, values: dict[str, Any], owes_credit: int) -> None:
        try:
            self._deliver(peer, values)
        finally:
            if owes_credit:
                with self._links.lock:
                    if (session := self._links.sessions.get(peer)) is not None:
                        session.credit(owes_credit)
                self._links.wake()

    def _deliver(self, peer: int, values: dict[str, Any]) -> None:
        for sender, own in self._routing.take_state(peer, values).items():
            known = self._known.setdefault(sender, set())
            if not known.issuperset(own):
                for topic in own.keys() - known:
                    if (reason := _fault(topic, len(known))) is None:
                        known.add(topic)
                    else:
                        del own[topic]
                        reason = f"Node {sender} sent {name_of(topic):.90}, {reason}."
                        self._links.dropped.add(reason)
            self._inbox.put_state(sender, own)


def name_of(topic: object) -> str:
    """Return the name of a topic in messages to the user: `ctx.KEY` for a ctx key."""
    if type(topic) is not str or not topic.isascii():
        return f"`{shorten(topic)}`"
    name = topic[: LONGEST_TOPIC + len(CTX)]
    return f"`ctx.{name[len(CTX) :]}`" if name.startswith(CTX) else f"Topic `{name}`"


def _fault(topic: str, num_known: int) -> str | None:
    if topic.startswith(CTX) and not is_key(topic[len(CTX) :]):
        return "which cannot be a ctx key"
    if len(topic) > LONGEST_TOPIC:
        return f"of {len(topic)} characters; the limit is {LONGEST_TOPIC}"
    if num_known >= MAX_TOPICS:
        return f"and has sent {MAX_TOPICS:,} other topics before, which is the limit"
    return None


def _may_wait(value: Any) -> bool:
    """Tell whether a value can be queued unencoded: it is immutable, and msgpack can hold it."""
    kind = type(value)
    if kind is int:
        return bool(-(2**63) <= value < 2**64)
    if kind is str:
        return len(value) < _LONG_TEXT and bool(value.isascii())
    if kind is bytes:
        return len(value) < _LONG_TEXT
    return kind in _UNCHANGING
