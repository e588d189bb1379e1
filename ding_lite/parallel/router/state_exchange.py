"""Send and receive the values of topics: the newest value of each topic wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ding_lite.parallel.link.links import Links
from ding_lite.parallel.memory.shared_values import SharedReceiver
from ding_lite.parallel.observe.message_trace import MessageTrace
from ding_lite.parallel.router.routing import DirectRouting
from ding_lite.parallel.router.state_outbox import StateOutbox, name_of
from ding_lite.parallel.wire.messages import StateArrived
from ding_lite.runtime.context import is_key
from ding_lite.runtime.messaging.inbox import Inbox
from ding_lite.runtime.messaging.labels import matches
from ding_lite.runtime.messaging.subscription import CTX

MAX_TOPICS = 10_000
"""The most topics of one sender, keys of its ctx included."""


class StateExchange:
    """Offer the topics of this node to its peers, and deliver theirs to the inbox.

    Args:
        links: The links of this node.
        routing: Its routing, which may pass values on.
        outbox: Encodes the values of this node.
        inbox: Takes the values of other nodes.
        traced: Records messages for a timeline.
        keeps_offers: Whether to keep published values for nodes that join later.
    """

    def __init__(
        self,
        links: Links,
        routing: DirectRouting,
        outbox: StateOutbox,
        inbox: Inbox,
        traced: MessageTrace,
        *,
        keeps_offers: bool,
    ) -> None:
        self._links = links
        self._routing = routing
        self._outbox = outbox
        self._inbox = inbox
        self._traced = traced
        self._keeps_offers = keeps_offers
        self._offered: dict[str, tuple[tuple[str, ...] | None, Any]] = {}
        self._topics: dict[int, set[str]] = {}
        self._shared_receiver = SharedReceiver(self._deliver_shared, links.reject)

    def publish(self, topic: str, value: Any, patterns: tuple[str, ...] | None) -> None:
        """Publish a value under a topic."""
        self._offer(self._outbox.encode(topic, value), patterns)

    def publish_ctx(self, values: Mapping[str, Any], patterns: tuple[str, ...] | None) -> None:
        """Publish ctx values; those that cannot be encoded are left out, with a warning."""
        topics = {CTX + key if type(key) is str else key: v for key, v in values.items()}
        self._offer(self._outbox.fill(topics), patterns)

    def _offer(self, slots: Mapping[str, Any], patterns: tuple[str, ...] | None) -> None:
        """Offer slots to the connected nodes that label patterns match; None matches all."""
        began_ns, peers = self._traced.now(), []
        slots = self._routing.addressed(slots, patterns)
        with self._links.changed:
            if self._keeps_offers:
                self._offered |= {key: (patterns, slot) for key, slot in slots.items()}
            for peer, session in self._links.sessions.items():
                if patterns is None or self._routing.leads_to(peer, patterns):
                    session.state.offer(slots)
                    peers.append(peer)
            self._traced.published(began_ns, peers)
        self._links.wake()

    def offer_newest(self, peer: int, labels: frozenset[str]) -> None:
        """Offer earlier values to a node that has just joined."""
        with self._links.changed:
            offered = self._offered.items()
            slots = {k: v for k, (to, v) in offered if to is None or matches(labels, to)}
            if (session := self._links.sessions.get(peer)) is not None:
                session.state.offer(slots)
        self._links.wake()

    def receive(self, peer: int, arrival: StateArrived) -> None:
        """Deliver values that have arrived; those in shared memory on a thread that reads it."""
        if arrival.owes_credit or self._shared_receiver.is_busy:
            self._shared_receiver.put(peer, arrival.values, arrival.owes_credit)
        else:
            self._deliver(peer, arrival.values)

    def forget(self, peer: int) -> None:
        """Drop pending values of a peer that is gone."""
        self._shared_receiver.forget(peer)

    def close(self) -> None:
        """End the thread that reads shared memory."""
        self._shared_receiver.close()

    def _deliver_shared(self, peer: int, values: dict[str, Any], owes_credit: int) -> None:
        try:
            self._deliver(peer, values)
        finally:
            if owes_credit:
                with self._links.changed:
                    if (session := self._links.sessions.get(peer)) is not None:
                        session.credit(owes_credit)
                self._links.wake()

    def _deliver(self, peer: int, values: dict[str, Any]) -> None:
        for sender, own in self._routing.take_state(peer, values).items():
            known = self._topics.setdefault(sender, set())
            if not known.issuperset(own):
                for topic in own.keys() - known:
                    if (reason := _fault(topic, len(known))) is None:
                        known.add(topic)
                    else:
                        del own[topic]
                        self._links.reject(f"Node {sender} sent {name_of(topic):.90}, {reason}.")
            self._inbox.put_state(sender, own)


def _fault(topic: str, num_known: int) -> str | None:
    if topic.startswith(CTX) and not is_key(topic[len(CTX) :]):
        return "which cannot be a ctx key"
    if num_known >= MAX_TOPICS:
        return f"and has sent {MAX_TOPICS:,} other topics before, which is the limit"
    return None
