"""Store and forward: the stream items that a node of a tree relays, until they are taken.

Every node on the route of an item keeps it, including its sender, and relays it as the credits of
the next hop allow. The answer returns on the same route when a program has taken the item. Only
then is there room for another item, so all queues are bounded by the credits of the receiver. If
the next hop is lost, the item waits for it to come back, and is sent again. Its receiver recognizes
a duplicate by its `ItemId`.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

from ding_lite.runtime.messaging.streams import ItemId


@dataclass(eq=False)
class QueuedItem:
    """An item that has not been taken."""

    item_id: ItemId
    to: int
    stream: str
    credits: int
    """The most items of this stream in flight from here to that node."""
    body: Any
    taken: Future[Any] = field(default_factory=Future)
    place: int = 0
    """The arrival number at this node."""


class _Queue:
    """The queued items of one stream for one node."""

    def __init__(self) -> None:
        self.waiting: list[QueuedItem] = []
        """The items in order of arrival."""
        self.num_under_way = 0


class HopQueue:
    """Queue the items that a node relays.

    `send(item)` returns the future of the outcome; None if the next hop was lost before it
    answered. `is_there` tells whether the next hop to a node is connected.
    """

    def __init__(
        self, send: Callable[[QueuedItem], Future[Any]], is_there: Callable[[int], bool]
    ) -> None:
        self._send = send
        self._is_there = is_there
        self._held: dict[ItemId, QueuedItem] = {}
        self._num_kept = 0
        self._queues: defaultdict[tuple[int, str], _Queue] = defaultdict(_Queue)
        self._lock = threading.Lock()

    def keep(self, item: QueuedItem) -> Future[Any]:
        """Queue an item; return the future of its outcome. A duplicate is recognized."""
        with self._lock:
            known = self._held.setdefault(item.item_id, item)
            if known is item:
                self._num_kept += 1
                item.place = self._num_kept
                self._queues[item.to, item.stream].waiting.append(item)
        self._pass_on(item.to, item.stream)
        return known.taken

    def resume(self, is_meant: Callable[[int], bool]) -> None:
        """Relay the items for nodes with a restored route."""
        for to, stream in [queue for queue in list(self._queues) if is_meant(queue[0])]:
            self._pass_on(to, stream)

    def give_up(self, is_meant: Callable[[int], bool], outcome: object) -> list[ItemId]:
        """Settle the waiting items for some nodes with an outcome; return their ids."""
        lost: list[QueuedItem] = []
        with self._lock:
            for (to, _), queue in self._queues.items():
                if is_meant(to):
                    lost += queue.waiting
                    queue.waiting = []
            for item in lost:
                del self._held[item.item_id]
        for item in lost:
            item.taken.set_result(outcome)
        return [item.item_id for item in lost]

    def _pass_on(self, to: int, stream: str) -> None:
        queue = self._queues[to, stream]
        while self._is_there(to):
            with self._lock:
                if not queue.waiting or queue.num_under_way >= queue.waiting[0].credits:
                    return
                item = queue.waiting.pop(0)
                queue.num_under_way += 1
            self._send(item).add_done_callback(partial(self._settle, item))

    def _settle(self, item: QueuedItem, done: Future[Any]) -> None:
        outcome = done.result()
        with self._lock:
            queue = self._queues[item.to, item.stream]
            queue.num_under_way -= 1
            if outcome is None:
                insort(queue.waiting, item, key=attrgetter("place"))
                return
            del self._held[item.item_id]
        item.taken.set_result(outcome)
        self._pass_on(item.to, item.stream)
