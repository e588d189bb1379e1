"""Streams over links that a test breaks whenever it likes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from ding_lite.errors import CodecError, DeadlineExceeded, PeerLost
from ding_lite.runtime.messaging.streams import UNCERTAIN_S, Item, ItemId, Numbers, Parcel, Streams
from ding_lite.testing import ManualClock


def over() -> bool:
    return True


def done(result: None) -> Future[None]:
    answer: Future[None] = Future()
    answer.set_result(result)
    return answer


def never(node: int, what: object) -> Future[Any]:
    raise AssertionError("a receiver sends nothing")


class Receiver:
    """One incarnation of a node that takes items."""

    def __init__(self, clock: ManualClock) -> None:
        self.streams = Streams(never, never, lambda _to: [], clock)
        self.taken: list[int] = []
        self.acknowledged: set[int] = set()


def receiving() -> Streams:
    return Receiver(ManualClock()).streams


class Job:
    """Node 0 sends, the nodes 1 and 2 receive; each link is up or down and has two directions."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sender = Streams(self.carry, self.withdraw, self.receivers, self.clock)
        self.nodes = {1: Receiver(self.clock), 2: Receiver(self.clock)}
        self.dead: list[Receiver] = []
        self.up = {1, 2}
        self.calls: dict[int, deque[Any]] = {1: deque(), 2: deque()}
        self.replies: dict[int, deque[Any]] = {1: deque(), 2: deque()}
        self.waiting: dict[int, list[Future[Any]]] = {1: [], 2: []}
        self.sent = 0

    def receivers(self, to: Iterable[str]) -> list[int]:
        return sorted(self.up)

    def carry(self, node: int, parcel: Parcel) -> Future[Any]:
        number, oldest, value = parcel.body
        receiver = self.nodes[node]

        def arrive() -> Future[None]:
            return receiver.streams.arrive(0, 1, parcel.stream, number, oldest, value)

        return self.ask(node, arrive, lambda: receiver.acknowledged.add(value))

    def ask(
        self,
        node: int,
        handle: Callable[[], Future[None]],
        on_answer: Callable[[], object] = lambda: None,
    ) -> Future[Any]:
        answer: Future[Any] = Future()
        if node not in self.up:
            answer.set_exception(PeerLost("not connected"))
            return answer
        self.waiting[node].append(answer)

        def reply() -> None:
            on_answer()
            self.waiting[node].remove(answer)
            answer.set_result(None)

        def send_reply(_: Future[None]) -> None:
            if answer in self.waiting[node]:  # a node that was cut off has forgotten that it asked
                self.replies[node].append(reply)

        self.calls[node].append(lambda: handle().add_done_callback(send_reply))
        return answer

    def withdraw(self, node: int, numbers: Sequence[int]) -> Future[Any]:
        streams = self.nodes[node].streams
        return self.ask(node, lambda: done(streams.withdraw(0, 1, numbers)))

    def send(self) -> None:
        self.sent += self.sender.send(
            "work",
            lambda number, oldest: (number, oldest, self.sent),
            ("any",),
            in_flight=3,
            timeout=None,
            until=over,
        )

    def deliver(self, node: int, *, reply: bool) -> None:
        queue = (self.replies if reply else self.calls)[node]
        if queue:
            queue.popleft()()

    def take(self, node: int) -> bool:
        item = self.nodes[node].streams.receive("work", timeout=None, until=over)
        if item is not None:
            self.nodes[node].taken.append(item.value)
        return item is not None

    def cut(self, node: int) -> None:
        self.up.discard(node)
        self.calls[node].clear()
        self.replies[node].clear()
        lost, self.waiting[node] = self.waiting[node], []
        for answer in lost:
            answer.set_exception(PeerLost("the link has broken"))

    def heal(self, node: int) -> None:
        if node not in self.up:
            self.up.add(node)
            self.sender.joined(node, is_new_incarnation=False)

    def restart(self, node: int) -> None:
        self.cut(node)
        self.dead.append(self.nodes[node])
        self.nodes[node] = Receiver(self.clock)
        self.up.add(node)
        self.sender.joined(node, is_new_incarnation=True)

    def wait(self) -> None:
        """Make the sender give up all absent receivers; no item is taken meanwhile."""
        self.clock.advance(UNCERTAIN_S)
        self.sender.resolve_expired()

    def pause(self) -> None:
        """Let 8 s pass, if that is not too long for a receiver to be taken for dead."""
        if self.clock.now() + 8.0 < UNCERTAIN_S:
            self.clock.advance(8.0)
            self.sender.resolve_expired()

    def settle(self) -> None:
        for node in self.nodes:
            self.heal(node)
        busy = True
        while busy:
            busy = any(self.calls.values()) or any(self.replies.values())
            for node in self.nodes:
                self.deliver(node, reply=False)
                self.deliver(node, reply=True)
                busy = self.take(node) or busy


happenings = st.one_of(
    st.sampled_from(["send", "pause"]),
    st.tuples(
        st.sampled_from(["call", "reply", "take", "cut", "heal", "restart"]),
        st.sampled_from([1, 2]),
    ),
)


@settings(max_examples=150)
@given(st.lists(happenings, max_size=60))
@example(["send", ("call", 1), ("take", 1), ("cut", 1), "pause"])  # the answer is lost
@example(["send", ("call", 1), ("cut", 1), ("take", 1), "pause"])  # there is none
@example(["send", ("call", 1), ("cut", 1), ("cut", 2), ("take", 1), "pause", ("heal", 2)])
def test_each_item_is_taken_once_whatever_breaks(story: list[Any]) -> None:
    job = Job()
    for what in story:
        match what:
            case "send":
                job.send()
            case "pause":
                job.pause()
            case ("call", node):
                job.deliver(node, reply=False)
            case ("reply", node):
                job.deliver(node, reply=True)
            case ("take", node):
                job.take(node)
            case (name, node):
                getattr(job, name)(node)
    job.settle()

    taken = Counter(value for node in job.nodes.values() for value in node.taken)
    done_by_the_dead = Counter(value for node in job.dead for value in node.acknowledged)
    assert taken + done_by_the_dead == Counter(range(job.sent))


@settings(max_examples=80)
@given(
    st.lists(st.sampled_from(["send", "call 1", "call 2", "cut 1", "wait", "heal 1"]), max_size=40)
)
# It waits until a receiver has room; and it goes back to the one that may have taken it already.
@example(["send", "cut 1", "cut 2", "wait", "heal 2"])
@example(["send", "call 1", "cut 1", "cut 2", "take 1", "wait", "heal 1"])
def test_items_given_to_others_are_withdrawn_from_a_receiver_that_is_back(story: list[str]) -> None:
    job = Job()
    for what in story:
        name, *node = what.split()
        if name == "call":
            job.deliver(int(node[0]), reply=False)
        else:
            getattr(job, name)(*map(int, node))
    job.settle()
    assert Counter(job.nodes[1].taken + job.nodes[2].taken) == Counter(range(job.sent))


def test_the_items_of_a_node_that_has_left_go_to_another_at_once() -> None:
    job = Job()
    for _ in range(4):
        job.send()
    job.sender.left(1)
    job.cut(1)
    while job.calls[2]:
        job.deliver(2, reply=False)
    while job.take(2):
        pass
    assert sorted(job.nodes[2].taken) == [0, 1, 2, 3]


def test_a_copy_that_comes_after_its_item_was_settled_is_not_taken() -> None:
    streams = receiving()
    streams.arrive(0, 1, "work", 1, 1, "first")
    assert streams.receive("work", timeout=None, until=over) == Item(0, "first", ItemId(0, 1, 1))
    streams.arrive(0, 1, "work", 2, 2, "second")
    late = streams.arrive(0, 1, "work", 1, 1, "first")  # by a connection of before the link broke
    assert late.done()
    assert streams.receive("work", timeout=None, until=over) == Item(0, "second", ItemId(0, 1, 2))
    assert streams.receive("work", timeout=None, until=over) is None


def test_an_item_that_expires_during_a_search_is_sent_again_by_the_next_one() -> None:
    class Passing(ManualClock):
        def now(self) -> float:
            self.advance(1.0)
            return super().now()

    clock, reachable = Passing(), [1]
    answers: list[Future[Any]] = []
    sent_to: list[tuple[int, int]] = []

    def carry(node: int, parcel: Parcel) -> Future[Any]:
        sent_to.append((node, parcel.number))
        answers.append(Future())
        return answers[-1]

    sender = Streams(carry, never, lambda to: reachable, clock)
    for _ in range(2):
        sender.send(
            "work", lambda number, oldest: number, ("any",), in_flight=2, timeout=None, until=over
        )
    reachable = [2]
    for answer in answers:
        answer.set_exception(PeerLost("a broken link"))
        clock.advance(2.0)  # so that the second one expires behind the first look at both
    for _ in range(int(UNCERTAIN_S)):
        sender.resolve_expired()
    assert sent_to == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_a_receiver_that_was_taken_for_dead_takes_again_under_the_same_id() -> None:
    job = Job()
    job.send()
    job.deliver(1, reply=False)
    first = job.nodes[1].streams.receive("work", timeout=0.0, until=None)
    job.cut(1)
    job.wait()
    job.deliver(2, reply=False)
    second = job.nodes[2].streams.receive("work", timeout=0.0, until=None)
    assert first == second == Item(0, 0, ItemId(0, 1, 1))


def test_an_item_that_cannot_be_written_or_carried_takes_no_room() -> None:
    numbers = []

    def carry(node: int, parcel: Parcel) -> Future[Any]:
        if parcel.number == 1:
            raise CodecError("its class refuses it the second time")
        return Future()

    def write(number: int, oldest: int) -> None:
        numbers.append((number, oldest))
        if 2 <= len(numbers) <= 8:
            raise CodecError("no")

    def send() -> bool:
        return sender.send("work", write, ("any",), in_flight=1, timeout=None, until=over)

    sender = Streams(carry, never, lambda to: [1], ManualClock())
    for fault in ("refuses it", *["no"] * 7):
        with pytest.raises(CodecError, match=fault):
            send()
    assert send()
    number, oldest = numbers[-1]
    assert number == oldest > 1  # all before it are given up
    assert not send()  # there is an item in flight now


def test_an_item_with_malformed_numbers_is_refused() -> None:
    with pytest.raises(CodecError, match="name of a stream and whole numbers"):
        receiving().arrive(0, 1, "work", "one", 1, None)  # type: ignore[arg-type]


def test_arrays_are_withdrawn_by_their_numbers_which_are_read_once_and_not_for_each_item() -> None:
    class Unsearchable(list[int]):
        def __contains__(self, _: object) -> bool:
            raise AssertionError

    receiver = receiving()
    for number in (1, 2, 3):
        receiver.arrive(0, 1, "work", number, 1, np.zeros(2))
    receiver.withdraw(0, 1, Unsearchable([2, 3]))
    item = receiver.receive("work", timeout=0.0, until=None)
    assert item is not None
    assert item.id == ItemId(0, 1, 1)
    assert receiver.num_waiting == 0


def test_items_of_two_lives_of_a_sender_are_different_items() -> None:
    receiver = receiving()
    for incarnation in (1, 2):
        receiver.arrive(0, incarnation, "work", 1, 1, f"of incarnation {incarnation}")
    items = [receiver.receive("work", timeout=0.0, until=None) for _ in range(2)]
    assert items == [
        Item(0, "of incarnation 1", ItemId(0, 1, 1)),
        Item(0, "of incarnation 2", ItemId(0, 2, 1)),
    ]
    with pytest.raises(DeadlineExceeded):
        receiver.receive("work", timeout=0.0, until=None)


def test_what_is_remembered_of_taken_items_stays_small_while_another_receiver_is_stuck() -> None:
    job = Job()
    streams = job.nodes[1].streams
    for number in range(2, 4_002):  # item 1 is at another node, which does not take it
        streams.arrive(0, 1, "work", number, 1, number)
        assert job.take(1)
    sender = streams._senders[0]
    assert not sender.known
    assert len(sender.taken._pages) == 4
    for number in (2, 2_000, 4_001):
        assert streams.arrive(0, 1, "work", number, 1, number).done()  # each comes once
    assert not job.take(1)
    streams.arrive(0, 1, "work", 4_002, 4_002, 0)
    assert len(sender.taken._pages) == 1


steps = st.tuples(st.sampled_from(["add", "forget"]), st.integers(0, 5_000))


@given(st.lists(steps, max_size=200))
def test_numbers_are_a_set_that_forgets_what_is_old_in_rows_of_1024(taken) -> None:
    numbers, expected, oldest = Numbers(), set[int](), 0
    for what, number in taken:
        if what == "add" and number >= oldest:  # what is older does not come any more
            numbers.add(number)
            expected.add(number)
        elif what == "forget":
            numbers.forget_before(number)
            oldest = max(oldest, number)
            expected = {known for known in expected if known >= oldest // 1024 * 1024}
    assert {number for number in range(5_001) if number in numbers} == expected


def test_what_is_far_away_costs_no_time_and_no_memory() -> None:
    numbers = Numbers()
    for number in (5, 2**62):
        numbers.add(number)
        assert number in numbers
    numbers.forget_before(2**61)
    assert (5 in numbers, 2**62 in numbers, len(numbers._pages)) == (False, True, 1)
