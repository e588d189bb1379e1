"""Passing events on without losing them, and without a queue that grows.

A hub acknowledges an event once all those that it has passed it on to have acknowledged it. So its
sender keeps the event until then. A node that is stuck, anywhere behind the hub, fills the window
of the sender, whose `emit` waits as it does for a peer. All that waits in a hub is in the
windows of its peers. If the hub is killed they send it again to its next incarnation; what had
come through before is recognized by its `Origin` and dropped.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from ding_lite.parallel.link.links import Links
from ding_lite.parallel.wire.codec import Encoded


class Origin(NamedTuple):
    """Where an event comes from."""

    node: int
    """The node that has emitted it."""
    incarnation: int
    """That of the node."""
    number: int
    """In the incarnation's count of its events for this way."""


class EventFlow:
    """Passes events on to peers.

    Args:
        links: The peers.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self._newest: dict[int, tuple[int, int]] = {}
        """The incarnation and the number of the last event of each node."""
        self._under_way: defaultdict[tuple[int, int], deque[tuple[int, int]]] = defaultdict(deque)
        """By source and way, the events that are not acknowledged: their numbers there and here."""
        for way, session in links.sessions.items():
            session.on_acknowledged = partial(self._settle, way)

    def is_new(self, origin: Origin) -> bool:
        """Note that an event has come; return whether it is the first time."""
        incarnation, number = self._newest.get(origin.node, (0, 0))
        if origin.incarnation == incarnation and origin.number <= number:
            return False
        self._newest[origin.node] = origin.incarnation, origin.number
        return True

    def pass_on(self, event: Encoded, number: int, *, source: int, ways: Iterable[int]) -> None:
        """Queue an event for peers.

        Args:
            event: As it is to travel.
            number: The source's.
            source: The peer that it has come from.
            ways: The peers that get it.
        """
        with self._links.changed:
            for way in ways:
                session = self._links.sessions[way]
                if not session.has_left:
                    self._under_way[source, way].append((session.post(event), number))
                    self._links.sessions[source].hold_back(number)
            self._links.say()

    def forget(self, source: int) -> None:
        """Forget the numbers of a peer that begins anew; what it has sent goes on."""
        with self._links.changed:
            for key in [key for key in self._under_way if key[0] == source]:
                del self._under_way[key]

    def _settle(self, way: int, seen: int) -> None:
        """Acknowledge what a peer was the last one to acknowledge; with the lock held."""
        for (source, to), under_way in self._under_way.items():
            if to == way and under_way and under_way[0][0] <= seen:
                while under_way and under_way[0][0] <= seen:
                    under_way.popleft()
                self._links.sessions[source].release(self._first_under_way(source))
                self._links.wake()

    def _first_under_way(self, source: int) -> int | None:
        queues = [queue for (of, _), queue in self._under_way.items() if of == source]
        return min((queue[0][1] for queue in queues if queue), default=None)
