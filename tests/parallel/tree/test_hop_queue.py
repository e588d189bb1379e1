"""HopQueue: store and forward of items that pass through a hub."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from hypothesis import given, strategies as st

from ding_lite.parallel.tree.hop_queue import HopQueue, ItemId, QueuedItem


class Road:
    """The way to the next node; a test decides what comes of what is sent there."""

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


def test_a_hub_passes_on_no_more_than_its_credits_allow() -> None:
    road = Road()
    taken = [road.keep(number) for number in range(5)]
    assert road.under_way() == [0, 1]
    road.sent[1][1].set_result("taken")
    assert road.under_way() == [0, 2]
    assert [each.done() for each in taken] == [False, True, False, False, False]
    assert road.hop_queue.num_held == 4


def test_the_credits_of_one_receiver_are_not_those_of_another() -> None:
    road = Road()
    for number in range(3):
        road.keep(number, credits=1)
    road.keep(10, to=5, credits=1)
    assert road.under_way() == [0, 10]


def test_an_item_that_comes_twice_is_kept_once_and_both_askers_are_told() -> None:
    road = Road()
    first, again = road.keep(1), road.keep(1)
    road.keep(1, origin=8)  # another node's first one
    assert len(road.sent) == 2
    road.sent[0][1].set_result("taken")
    assert first.result(0) == again.result(0) == "taken"


def test_what_the_next_node_has_not_answered_goes_again_when_it_is_back() -> None:
    road = Road()
    taken = [road.keep(number) for number in range(3)]
    road.break_down()
    assert road.under_way() == []
    late = road.keep(3)
    assert road.under_way() == []
    road.mend()
    assert road.under_way() == [0, 1]
    while road.under_way():
        next(done for _, done in road.sent if not done.done()).set_result("taken")
    assert [each.result(0) for each in (*taken, late)] == 4 * ["taken"]
    assert road.hop_queue.num_held == 0


def test_what_waits_for_a_node_that_is_given_up_is_told_so() -> None:
    road = Road()
    lost, other = road.keep(1), road.keep(2, to=5)
    road.break_down()
    assert road.hop_queue.give_up(lambda to: to == 0, "lost") == [ItemId(7, 1, 1)]
    assert lost.result(0) == "lost"
    assert not other.done()
    road.mend()
    assert [item.to for item, done in road.sent if not done.done()] == [5]


@given(st.lists(st.sampled_from(["keep", "take", "break", "mend"]), max_size=60))
def test_whatever_happens_each_item_is_told_of_once_and_credits_hold(acts: list[str]) -> None:
    road = Road()
    kept: list[Future[Any]] = []
    for act in acts:
        if act == "keep":
            kept.append(road.keep(len(kept)))
        elif act == "take" and road.under_way():
            next(done for _, done in road.sent if not done.done()).set_result("taken")
        elif act == "break":
            road.break_down()
        elif act == "mend":
            road.mend()
        assert len(road.under_way()) <= 2
    road.mend()
    while road.under_way():
        next(done for _, done in road.sent if not done.done()).set_result("taken")
    assert [each.result(0) for each in kept] == ["taken"] * len(kept)
