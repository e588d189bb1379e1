"""HopQueue: store and forward of items that pass through a hub."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from hypothesis import given, strategies as st

from ding_lite.parallel.tree.hop_queue import HopQueue, QueuedItem
from ding_lite.runtime.messaging.streams import ItemId


class Link:
    """The link to the next hop; a test decides the outcome of each item."""

    def __init__(self) -> None:
        self.is_open = True
        self.sent: list[tuple[QueuedItem, Future[Any]]] = []
        self.hop_queue = HopQueue(self._send, lambda _to: self.is_open)

    def _send(self, item: QueuedItem) -> Future[Any]:
        done: Future[Any] = Future()
        self.sent.append((item, done))
        return done

    def keep(self, number: int, *, origin: int = 7, to: int = 0, credits: int = 2) -> Future[Any]:
        return self.hop_queue.keep(QueuedItem(ItemId(origin, 1, number), to, "work", credits, None))

    def under_way(self) -> list[int]:
        return [item.item_id.number for item, done in self.sent if not done.done()]

    def break_down(self) -> None:
        self.is_open = False
        for _, done in self.sent:
            if not done.done():
                done.set_result(None)

    def mend(self) -> None:
        self.is_open = True
        self.hop_queue.resume(lambda _to: True)


def test_each_receiver_has_its_own_credits() -> None:
    link = Link()
    for number, to in ((0, 0), (1, 0), (2, 0), (10, 5)):
        link.keep(number, to=to, credits=1)
    assert link.under_way() == [0, 10]


def test_a_duplicate_item_is_queued_once_and_answered_twice() -> None:
    link = Link()
    first, again = link.keep(1), link.keep(1)
    link.keep(1, origin=8)  # the first item of another node
    assert len(link.sent) == 2
    link.sent[0][1].set_result("taken")
    assert first.result(0) == again.result(0) == "taken"


def test_waiting_items_of_a_given_up_node_are_settled() -> None:
    link = Link()
    lost, other = link.keep(1), link.keep(2, to=5)
    link.break_down()
    assert link.hop_queue.give_up(lambda to: to == 0, "lost") == [ItemId(7, 1, 1)]
    assert lost.result(0) == "lost"
    assert not other.done()
    link.mend()
    assert [item.to for item, done in link.sent if not done.done()] == [5]


@given(st.lists(st.sampled_from(["keep", "take", "break", "mend"]), max_size=60))
def test_each_item_is_settled_once_and_the_oldest_go_within_their_credits(acts) -> None:
    link = Link()
    kept: list[Future[Any]] = []
    for act in acts:
        if act == "keep":
            kept.append(link.keep(len(kept)))
        elif act == "take" and link.under_way():
            next(done for _, done in link.sent if not done.done()).set_result("taken")
        elif act == "break":
            link.break_down()
        elif act == "mend":
            link.mend()
        left = [number for number, each in enumerate(kept) if not each.done()]
        assert sorted(link.under_way()) == (left[:2] if link.is_open else [])
    link.mend()
    while link.under_way():
        next(done for _, done in link.sent if not done.done()).set_result("taken")
    assert [each.result(0) for each in kept] == ["taken"] * len(kept)
