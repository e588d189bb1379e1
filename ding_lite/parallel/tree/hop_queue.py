"""What a node of a tree keeps of the items that pass through it, until they are taken.

An item is kept by every node on its way, its sender included, and passed on as the credits of the
next one allow. The answer comes back the same way when a program has taken the item, and only
then a hub's child has room for another one: so what waits anywhere is bounded by what the
receiver takes. Where the next node is lost, the item waits here for it to come back, and goes
again. It may go twice then: its receiver knows it by who has sent it and its number.
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
from typing import Any, NamedTuple


class ItemId(NamedTuple):
    """What tells an item from all others."""

    origin: int
    """The node that has sent it."""
    incarnation: int
    """That of the node."""
    number: int
    """In that node's count."""


@dataclass(eq=False)
class QueuedItem:
    """An item on its way."""

    item_id: ItemId
    to: int
    """The node that is to take it."""
    stream: str
    credits: int
    """How many of this stream may be on their way from here to that node."""
    body: Any
    taken: Future[Any] = field(default_factory=Future)
    """Gets what becomes of it."""
    place: int = 0
    """Counts the items that have come here."""


class _Queue:
    """The items of one stream for one node."""

    def __init__(self) -> None:
        self.waiting: list[QueuedItem] = []
        """In the order in which they have come."""
        self.num_under_way = 0


class HopQueue:
    """Keeps the items that pass through a node.

    Args:
        carry: Takes an item to the next node. Its future gets what has become of it; None if
            that node was lost before it could say.
        is_there: Tells whether the node that leads to another one is connected.
    """

    def __init__(
        self, carry: Callable[[QueuedItem], Future[Any]], is_there: Callable[[int], bool]
    ) -> None:
        self._carry = carry
        self._is_there = is_there
        self._held: dict[ItemId, QueuedItem] = {}
        self._num_kept = 0
        self._queues: defaultdict[tuple[int, str], _Queue] = defaultdict(_Queue)
        self._lock = threading.Lock()

    @property
    def num_held(self) -> int:
        """How many items are here, passed on or not."""
        return len(self._held)

    def keep(self, item: QueuedItem) -> Future[Any]:
        """Keep an item until it is known what has become of it; it may be here already."""
        with self._lock:
            known = self._held.setdefault(item.item_id, item)
            if known is item:
                self._num_kept += 1
                item.place = self._num_kept
                self._queues[item.to, item.stream].waiting.append(item)
        self._pass_on(item.to, item.stream)
        return known.taken

    def resume(self, is_meant: Callable[[int], bool]) -> None:
        """Pass on what waits for nodes to which the way is there again."""
        for to, stream in [queue for queue in list(self._queues) if is_meant(queue[0])]:
            self._pass_on(to, stream)

    def give_up(self, is_meant: Callable[[int], bool], outcome: object) -> list[ItemId]:
        """Say of what waits for some nodes what has become of it; return which items these are."""
        with self._lock:
            lost = [
                item
                for (to, _), queue in self._queues.items()
                if is_meant(to)
                for item in queue.waiting
            ]
            for item in lost:
                self._queues[item.to, item.stream].waiting.remove(item)
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
            self._carry(item).add_done_callback(partial(self._settle, item))

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
