"""Relay events reliably and with back-pressure.

A hub acknowledges an event once all nodes to which it has relayed the event have acknowledged it,
so the sender keeps the event until then. A hung node anywhere behind the hub fills the window of
the sender, and its `emit` blocks as it does for a direct peer. A hub thus queues no more than the
windows of its peers. If a hub is killed, its peers send the events again to its next incarnation;
a duplicate is recognized by its `Origin` and dropped.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from ding_lite.parallel.link.links import Links
from ding_lite.parallel.wire.codec import Encoded


class Origin(NamedTuple):
    """The identity of an event: its origin and a sequence number."""

    node: int
    incarnation: int
    number: int
    """The sequence number of the event on its first link."""


class EventFlow:
    """Relays events to peers."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._newest: dict[int, tuple[int, int]] = {}
        """The incarnation and the number of the last event of each node."""
        self._under_way: defaultdict[tuple[int, int], deque[tuple[int, int]]] = defaultdict(deque)
        """Unacknowledged events by source and next hop, as pairs of outgoing and source number."""
        for hop, session in links.sessions.items():
            session.events.on_acknowledged = partial(self._settle, hop)

    def is_new(self, origin: Origin) -> bool:
        """Record an event; return False for a duplicate."""
        incarnation, number = self._newest.get(origin.node, (0, 0))
        if origin.incarnation == incarnation and origin.number <= number:
            return False
        self._newest[origin.node] = origin.incarnation, origin.number
        return True

    def pass_on(self, event: Encoded, number: int, *, source: int, hops: Iterable[int]) -> None:
        """Queue an event for peers; `number` is its number on the link of its `source`."""
        with self._links.lock:
            for hop in hops:
                session = self._links.sessions[hop]
                if not session.has_left:
                    self._under_way[source, hop].append((session.events.post(event), number))
                    self._links.sessions[source].hold_back(number)
            self._links.flush()

    def forget(self, source: int) -> None:
        """Forget the numbers of a restarted peer; its events are still relayed."""
        with self._links.lock:
            for key in [key for key in self._under_way if key[0] == source]:
                del self._under_way[key]

    def _settle(self, hop: int, seen: int) -> None:
        """Acknowledge events to their sources once all next hops have; with the lock held."""
        for (source, to), under_way in self._under_way.items():
            if to == hop and under_way and under_way[0][0] <= seen:
                while under_way and under_way[0][0] <= seen:
                    under_way.popleft()
                self._links.sessions[source].release(self._first_under_way(source))
                self._links.wake()

    def _first_under_way(self, source: int) -> int | None:
        queues = [queue for (of, _), queue in self._under_way.items() if of == source]
        return min((queue[0][1] for queue in queues if queue), default=None)
