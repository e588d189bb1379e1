"""The contract of every transport: a test for each promise of `transport/base.py`.

A test module of a transport makes a `Bench` for it, offers that as the fixture `bench`, and
derives a class from `TransportContract`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
import pytest

from ding_lite.errors import TransportError
from ding_lite.parallel.transport.base import CLOSE_TIMEOUT_S, Frame, Lane, Link, Transport
from ding_lite.parallel.transport.chunks import CHUNK_ABOVE, CHUNK_BYTES
from tests.threads import together

CONTROL, BULK = Lane.CONTROL, Lane.BULK
PEERS = 1, 2, 3
"""The nodes that may connect to a node."""
FOREVER_S = 1_000.0
"""Seconds to the next tick: long, so that a test needs a wake-up."""


class End:
    """A node's transport, with a sink that records messages and sends on its tick."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.messages: list[tuple[Link, list[Frame]]] = []
        self.ups: list[tuple[Link, int]] = []
        self.downs: list[Link] = []
        self.gone: set[Link] = set()
        self.refusals: list[tuple[int, str]] = []
        self.rejected: list[str] = []
        self.num_ticks = 0
        self.turn_every_s = FOREVER_S
        self.calls: list[str] = []
        self.callers: set[int] = set()
        self._heard_from: set[Link] = set()
        self._todo: list[Callable[[], object]] = []
        self._changed = threading.Condition()

    def start(self) -> End:
        self.transport.start(self)
        return self

    def do(self, call: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()
        with self._changed:
            self._todo.append(lambda: done.set_result(call()))
        self.transport.wake()
        return done.result(10.0)

    def send(self, link: Link, lane: Lane, *frames: Frame) -> bool:
        return bool(self.do(lambda: self.transport.send(link, lane, frames)))

    def wait(self, ready: Callable[[], bool], timeout: float = 10.0) -> None:
        with self._changed:
            assert self._changed.wait_for(ready, timeout)

    def hear(self, num_messages: int, timeout: float = 10.0) -> list[list[bytes]]:
        self.wait(lambda: len(self.messages) >= num_messages, timeout)
        return self.contents

    @property
    def contents(self) -> list[list[bytes]]:
        return [[bytes(frame) for frame in frames] for _, frames in self.messages]

    def _note(self, name: str, where: list[Any] | None = None, what: Any = None) -> None:
        with self._changed:
            self.calls.append(name)
            self.callers.add(threading.get_ident())
            if where is not None:
                where.append(what)
            self._changed.notify_all()

    def on_up(self, link: Link, node_id: int) -> None:
        self._note("up", self.ups, (link, node_id))

    def on_message(self, link: Link, frames: list[Frame]) -> None:
        self._heard_from.add(link)
        self._note("message", self.messages, (link, frames))

    def on_down(self, link: Link) -> None:
        self._note("down", self.downs, link)

    def on_suspicion(self) -> None:
        for link in self._heard_from:
            if not all(self.transport.send(link, lane, [b"still there?"]) for lane in Lane):
                self.gone.add(link)
        self._note("doubt")

    def on_refused(self, node_id: int, reason: str) -> None:
        self._note("refused", self.refusals, (node_id, reason))

    def on_rejected(self, reason: str, link: Link | None = None) -> None:
        self._note("rejected", self.rejected, reason)

    def on_tick(self) -> float:
        with self._changed:
            self.num_ticks += 1
            self._note("turn")
            todo, self._todo = self._todo, []
        for act in todo:
            act()
        return self.turn_every_s


@contextmanager
def standing_still(end: End) -> Iterator[None]:
    """Block a node's sink, as a busy or stopped program does."""
    is_stuck, may_go_on = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(end.do, lambda: is_stuck.set() or may_go_on.wait())
        is_stuck.wait()
        try:
            yield
        finally:
            may_go_on.set()


class Bench(ABC):
    """Make transports of one kind, which are closed after the test."""

    proves = True
    """Whether the transport authenticates its peers."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    @abstractmethod
    def make(self, node_id: int) -> Transport: ...

    @abstractmethod
    def anywhere(self) -> str:
        """Return an address on which no process listens."""

    def end(self, node_id: int) -> End:
        transport = self.make(node_id)
        self._stack.callback(transport.close)
        return End(transport)

    def listener(self, node_id: int = 0, *, at: str | None = None) -> tuple[End, str]:
        """Start a node that listens; also return its address."""
        end = self.end(node_id)
        address = end.transport.listen(at or self.anywhere())
        return end.start(), address

    def dialler(self, address: str, node_id: int = 1, *, to: int = 0) -> tuple[End, Link]:
        """Start a node that dials another one; also return the link, once it is up."""
        end = self.end(node_id)
        end.transport.dial(to, address)
        end.start()
        end.wait(lambda: bool(end.ups))
        return end, end.ups[0][0]

    def both(self) -> tuple[End, End, Link, Link]:
        """Connect two ends; return the link as each of them knows it."""
        hub, address = self.listener()
        leaf, to_hub = self.dialler(address)
        return hub, leaf, self.greet(hub, leaf, to_hub), to_hub

    def three(self) -> tuple[End, End, End, Link, Link, Link, Link]:
        """Connect nodes 1 and 2 to node 0; return its links, and theirs, after the ends."""
        hub, address = self.listener()
        leaf, to_hub = self.dialler(address)
        other, from_other = self.dialler(address, 2)
        to_leaf, to_other = self.greet(hub, leaf, to_hub), self.greet(hub, other, from_other)
        return hub, leaf, other, to_leaf, to_other, to_hub, from_other

    def greet(self, hub: End, leaf: End, to_hub: Link) -> Link:
        """Send from the dialling end; return the link as the other end knows it."""
        assert leaf.send(to_hub, CONTROL, b"hello")
        hub.wait(lambda: bool(hub.messages))
        return hub.messages.pop()[0]


class TransportContract:
    """The contract."""

    @pytest.mark.parametrize("lane", Lane)
    def test_messages_of_every_form_arrive_in_both_directions(self, bench, lane: Lane) -> None:
        hub, leaf, to_leaf, to_hub = bench.both()
        sizes = (0, 1, 65_535, CHUNK_ABOVE, CHUNK_ABOVE + 1, CHUNK_ABOVE + CHUNK_BYTES + 7)
        sent: list[list[Frame]] = [[b"head", b"", bytes(100_000)], [b""], [b"a", memoryview(b"bc")]]
        sent += [[np.full(size, size % 251, np.uint8).data] for size in sizes]
        sent += [[b"%d" % number for number in range(1_000)], [bytes(20_000)] * 300]
        for frames in sent:
            assert leaf.send(to_hub, lane, *frames)
            assert hub.send(to_leaf, lane, *frames)
        for end, link in ((hub, to_leaf), (leaf, to_hub)):
            assert end.hear(len(sent)) == [[bytes(frame) for frame in frames] for frames in sent]
            assert {each for each, _ in end.messages} == {link}

    def test_received_buffers_belong_to_the_receiver(self, bench: Bench) -> None:
        hub, leaf, _, to_hub = bench.both()
        block = np.arange(CHUNK_ABOVE + 8, dtype=np.uint8)
        sent: list[Frame] = [b"small" * 10, block.data]
        for _ in range(3):
            assert leaf.send(to_hub, BULK, *sent)
        before = hub.hear(3)
        first = np.frombuffer(hub.messages[0][1][1], np.float64)
        assert (first.flags.aligned, first.flags.writeable) == (True, True)
        first[:] = 0
        assert hub.contents[1:] == before[1:]
        assert bytes(block) == before[0][1]
        leaf.transport.close()
        hub.transport.close()
        del sent, block
        assert hub.contents[1:] == before[1:]

    def test_control_messages_overtake_large_ones(self, bench: Bench) -> None:
        hub, leaf, _, to_hub = bench.both()
        large = np.zeros(12_000_000, np.uint8).data

        with standing_still(hub):
            for _ in range(4):
                assert leaf.transport.send(to_hub, BULK, [b"large", large])
            assert leaf.transport.send(to_hub, CONTROL, [b"urgent"])
        order = [frames[0] for frames in hub.hear(5, 40.0)]
        assert order.index(b"urgent") < 4

    def test_a_hung_receiver_blocks_no_sender(self, bench: Bench) -> None:
        hub, leaf, other, to_leaf, to_other, *_ = bench.three()
        numbers = [b"%d" % number for number in range(1_500)]
        with standing_still(leaf):
            assert hub.do(
                lambda: all(hub.transport.send(to_leaf, BULK, [n, bytes(10_000)]) for n in numbers)
            )
            assert hub.send(to_other, CONTROL, b"and you")
            assert other.hear(1) == [[b"and you"]]
        assert [frames[0] for frames in leaf.hear(1_500)] == numbers

    def test_threads_may_send_while_others_answer(self, bench: Bench) -> None:
        hub, leaf, to_leaf, to_hub = bench.both()
        large = [np.full(CHUNK_ABOVE + 1, number, np.uint8) for number in range(2)]

        def send(end: End, link: Link, who: int) -> None:
            for number in range(300):
                lane = BULK if number % 2 else CONTROL
                assert end.transport.send(link, lane, [b"%d" % who, b"%d" % number, b"end"])
            assert end.transport.send(link, BULK, [b"%d" % who, large[who].data, b"end"])

        ends = (hub, to_leaf), (leaf, to_hub)
        together(*(partial(send, end, link, who) for end, link in ends for who in range(2)))
        for end in (hub, leaf):
            received = end.hear(602, 40.0)
            assert {frames[2] for frames in received} == {b"end"}
            for who in range(2):
                sent = [frame for by, frame, _ in received if by == b"%d" % who]
                numbers = [int(frame) for frame in sent if len(frame) < 10]
                assert [n for n in numbers if not n % 2] == [*range(0, 300, 2)]
                assert [n for n in numbers if n % 2] == [*range(1, 300, 2)]
                assert [frame for frame in sent if len(frame) > 10] == [large[who].tobytes()]

    def test_sending_does_not_starve_receiving(self, bench: Bench) -> None:
        """A send at the same moment may consume the notification of an arrival."""
        hub, leaf, to_leaf, to_hub = bench.both()
        for number in range(150):
            thread = threading.Thread(target=hub.transport.send, args=(to_leaf, CONTROL, [b"hub"]))
            thread.start()
            assert leaf.transport.send(to_hub, CONTROL, [b"leaf"])
            thread.join()
            for end in (hub, leaf):
                end.hear(number + 1, 5.0)

    def test_a_closed_transport_and_an_unknown_link_refuse_messages(self, bench: Bench) -> None:
        hub, leaf, to_leaf, to_hub = bench.both()
        for lane in Lane:
            assert not hub.send(Link(b"nobody" + to_leaf[6:]), lane, b"hello")
        leaf.transport.close()
        assert not leaf.transport.send(to_hub, CONTROL, [b"hello"])
        hub.transport.close()
        assert not hub.transport.send(to_leaf, CONTROL, [b"hello"])

    def test_a_broken_link_is_reported_and_reconnects_under_its_id(self, bench: Bench) -> None:
        hub, address = bench.listener()
        leaf, to_hub = bench.dialler(address)
        for turn in range(3):
            hub.transport.close()
            leaf.wait(lambda turn=turn: leaf.downs == [to_hub] * (turn + 1))  # type: ignore[misc]
            assert not leaf.send(to_hub, CONTROL, b"is anybody there")
            assert not leaf.send(to_hub, BULK, b"is anybody there")
            hub, _ = bench.listener(at=address)
            leaf.wait(lambda turn=turn: leaf.ups == [(to_hub, 0)] * (turn + 2))  # type: ignore[misc]
            assert leaf.send(to_hub, BULK, b"welcome back")
            assert leaf.send(to_hub, CONTROL, b"welcome back")
            assert hub.hear(2) == [[b"welcome back"]] * 2
        assert leaf.refusals == []

    def test_an_interrupted_message_is_lost_as_a_whole(self, bench: Bench) -> None:
        hub, address = bench.listener()
        leaf, to_hub = bench.dialler(address)
        blocks = [np.full(CHUNK_ABOVE + 1, number, np.uint8) for number in range(12)]
        for block in blocks:
            leaf.send(to_hub, BULK, b"%d" % block[0], block.data, b"end")
        hub.wait(lambda: bool(hub.messages))
        hub.transport.close()
        leaf.wait(lambda: bool(leaf.downs))
        again, _ = bench.listener(at=address)
        leaf.wait(lambda: len(leaf.ups) == 2)
        assert leaf.send(to_hub, BULK, b"99", np.full(CHUNK_ABOVE + 1, 99, np.uint8).data, b"end")
        again.wait(lambda: bool(again.messages) and again.contents[-1][0] == b"99")
        arrived = hub.contents + again.contents
        for number, content, end in arrived:
            assert content == bytes([int(number)]) * (CHUNK_ABOVE + 1)
            assert end == b"end"
        numbers = [int(number) for number, _, _ in arrived]
        assert numbers == sorted(numbers)

    def test_a_send_detects_a_peer_that_is_gone(self, bench: Bench) -> None:
        hub, leaf, _, to_leaf, to_other, *_ = bench.three()
        assert hub.send(to_leaf, BULK, b"hello")
        leaf.transport.close()
        hub.wait(lambda: hub.gone == {to_leaf})
        assert not hub.send(to_leaf, CONTROL, b"still there")
        assert not hub.send(to_leaf, BULK, b"still there")
        assert hub.send(to_other, CONTROL, b"you are")

    @pytest.mark.parametrize("by_dialler", [True, False])
    def test_a_link_dropped_by_either_end_reconnects(self, bench: Bench, by_dialler: bool) -> None:
        hub, leaf, other, to_leaf, _, to_hub, from_other = bench.three()
        assert leaf.send(to_hub, BULK, b"by both lanes")
        hub.hear(1)
        end, link = (leaf, to_hub) if by_dialler else (hub, to_leaf)
        end.do(lambda: end.transport.drop(link))
        end.do(lambda: end.transport.drop(Link(b"nobody" + link[6:])))
        # A lane may be back before the other one is noticed to be gone: then the link goes twice.
        leaf.wait(lambda: len(leaf.ups) == 1 + len(leaf.downs) >= 2)
        assert set(leaf.downs) == {to_hub}
        assert set(leaf.ups) == {(to_hub, 0)}
        for lane in Lane:
            assert leaf.send(to_hub, lane, b"back")
        assert hub.hear(3)[1:] == [[b"back"]] * 2
        assert other.send(from_other, CONTROL, b"and I")
        assert hub.hear(4)[3:] == [[b"and I"]]
        assert other.downs == []

    def test_a_node_may_dial_before_its_peer_listens(self, bench: Bench) -> None:
        hub, address = bench.listener()
        hub.transport.close()
        leaf = bench.end(1)
        leaf.transport.dial(0, address)
        leaf.start()
        again, _ = bench.listener(at=address)
        leaf.wait(lambda: len(leaf.ups) == 1)
        assert leaf.send(leaf.ups[0][0], CONTROL, b"hello")
        assert again.hear(1) == [[b"hello"]]

    def test_a_node_may_dial_several_others_and_listen_as_well(self, bench: Bench) -> None:
        first, to_first = bench.listener()
        middle = bench.end(1)
        at_middle = middle.transport.listen(bench.anywhere())
        second, to_second = bench.listener(2)
        middle.transport.dial(0, to_first)
        middle.transport.dial(2, to_second)
        middle.start()
        last, to_middle = bench.dialler(at_middle, 3, to=1)
        middle.wait(lambda: len(middle.ups) == 2)
        links = {node_id: link for link, node_id in middle.ups}
        assert links.keys() == {0, 2}
        for node_id, end in ((0, first), (2, second)):
            assert middle.send(links[node_id], CONTROL, b"%d" % node_id)
            assert end.hear(1) == [[b"%d" % node_id]]
            assert end.ups == []  # only the dialling end is notified
        assert last.send(to_middle, BULK, b"3")
        assert middle.hear(1) == [[b"3"]]

    def test_a_moved_node_is_dialled_at_its_new_address(self, bench: Bench) -> None:
        hub, old = bench.listener()
        leaf, to_hub = bench.dialler(old)
        bench.greet(hub, leaf, to_hub)
        moved, new = bench.listener()
        leaf.do(lambda: leaf.transport.redial(0, new))
        leaf.wait(lambda: len(leaf.ups) == 2)
        link, node_id = leaf.ups[1]
        assert (link != to_hub, node_id) == (True, 0)
        assert leaf.downs == []  # an end that drops a link itself is not notified
        assert leaf.send(to_hub, CONTROL, b"old") is False
        assert leaf.send(link, BULK, b"new")
        assert moved.hear(1) == [[b"new"]]
        hub.wait(lambda: bool(hub.gone))
        assert hub.messages == []
        assert moved.send(moved.messages[0][0], CONTROL, b"back")
        assert leaf.hear(1) == [[b"back"]]

    def test_the_sender_of_a_message_is_authenticated_or_unknown(self, bench: Bench) -> None:
        hub, address = bench.listener()
        for node_id in (1, 3):
            leaf, to_hub = bench.dialler(address, node_id)
            assert leaf.send(to_hub, CONTROL, b"%d" % node_id)
            assert leaf.do(lambda leaf=leaf, to_hub=to_hub: leaf.transport.owner(to_hub)) == 0  # type: ignore[misc]
        hub.hear(2)
        for link, frames in hub.messages:
            owner = hub.do(lambda link=link: hub.transport.owner(link))  # type: ignore[misc]
            assert owner == (int(bytes(frames[0])) if bench.proves else None)

    def test_an_unexpected_peer_is_refused_if_peers_are_authenticated(self, bench: Bench) -> None:
        hub, address = bench.listener()
        leaf, to_hub = bench.dialler(address)
        stranger = bench.end(7)
        stranger.transport.dial(0, address)
        stranger.start()
        if bench.proves:
            stranger.wait(lambda: bool(stranger.refusals))
            hub.wait(lambda: "of node 0" in "".join(hub.rejected))
            ((node_id, reason),) = stranger.refusals
            assert (node_id, stranger.ups, "peer" in reason) == (0, [], True)
        else:
            stranger.wait(lambda: len(stranger.ups) == 1)
            assert stranger.refusals == []
        assert leaf.send(to_hub, CONTROL, b"and I")
        assert hub.hear(1) == [[b"and I"]]

    def test_a_taken_address_is_refused(self, bench: Bench) -> None:
        hub, address = bench.listener()
        with pytest.raises(TransportError, match=r"cannot listen on .* Is another job using it\?"):
            bench.end(2).transport.listen(address)
        leaf, to_hub = bench.dialler(address)
        assert leaf.send(to_hub, CONTROL, b"hello")
        hub.wait(lambda: bool(hub.messages))

    def test_the_sink_is_called_on_one_thread_and_its_tick_comes_last(self, bench: Bench) -> None:
        hub, leaf, to_leaf, to_hub = bench.both()
        for number in range(100):
            assert leaf.send(to_hub, CONTROL, b"%d" % number)
            assert hub.send(to_leaf, BULK, b"%d" % number)
        leaf.hear(100)
        for end in (leaf, hub):
            end.transport.close()
            end.transport.wake()
        calls = [list(leaf.calls), list(hub.calls)]
        bench.both()  # so some time has passed
        assert [leaf.calls, hub.calls] == calls
        for end in (leaf, hub):
            assert end.calls[-1] == "turn"
            assert len(end.callers) == 1
            assert threading.get_ident() not in end.callers
        assert leaf.callers != hub.callers

    def test_a_tick_comes_when_it_is_due_and_on_request(self, bench: Bench) -> None:
        end = bench.end(1)
        end.turn_every_s = 0.005
        end.start()
        end.wait(lambda: end.num_ticks >= 5)  # it was not requested
        end.turn_every_s = FOREVER_S
        for _ in range(200):
            before = end.num_ticks
            end.transport.wake()
            end.wait(lambda before=before: end.num_ticks > before)  # type: ignore[misc]

    def test_a_tick_may_request_another_one(self, bench: Bench) -> None:
        hub, leaf, _, to_hub = bench.both()

        def ask() -> None:
            leaf._todo.append(lambda: leaf.transport.send(to_hub, CONTROL, [b"next turn"]))
            leaf.transport.wake()

        leaf.do(ask)
        assert hub.hear(1) == [[b"next turn"]]

    def test_an_error_of_the_sink_affects_only_its_message(self, bench, caplog) -> None:
        hub, leaf, _, to_hub = bench.both()
        note = hub.on_message

        def take(link: Link, frames: list[Frame]) -> None:
            if bytes(frames[0]) == b"poison":
                raise RuntimeError("a listener's own error")
            note(link, frames)

        hub.on_message = take

        for frame in (b"1", b"poison", b"2", b"poison", b"3"):
            assert leaf.transport.send(to_hub, CONTROL, [frame])
        assert hub.hear(3) == [[b"1"], [b"2"], [b"3"]]
        assert caplog.text.count("could not be handled") == 1
        assert "a listener's own error" in caplog.text

    def test_a_pumping_thread_calls_the_sink_for_every_message(self, bench: Bench) -> None:
        hub, leaf, to_leaf, to_hub = bench.both()
        for number in range(100):
            assert hub.transport.send(to_leaf, CONTROL, [b"%d" % number])
            leaf.transport.pump(lambda number=number: len(leaf.messages) > number, 10.0)  # type: ignore[misc]
            leaf.hear(number + 1)
            assert leaf.transport.send(to_hub, CONTROL, [b"%d" % number])
        for end in (leaf, hub):
            assert [frames[0] for frames in end.hear(100)] == [b"%d" % n for n in range(100)]

    def test_the_sink_is_never_called_concurrently(self, bench: Bench) -> None:
        hub, leaf, _, to_hub = bench.both()
        under_way: list[int] = []
        note, is_over = hub.on_message, threading.Event()

        def take(link: Link, frames: list[Frame]) -> None:
            under_way.append(threading.get_ident())
            assert hub.transport.is_calling
            note(link, frames)
            assert under_way == [threading.get_ident()]
            under_way.clear()

        def pump() -> None:
            while not is_over.is_set():
                hub.transport.pump(is_over.is_set, 0.002)

        hub.on_message = take  # type: ignore[method-assign]
        with ThreadPoolExecutor(3) as pool:
            pumping = [pool.submit(pump) for _ in range(3)]
            for number in range(1_000):
                assert leaf.transport.send(to_hub, CONTROL, [b"%d" % number])
            assert [frames[0] for frames in hub.hear(1_000)] == [b"%d" % n for n in range(1_000)]
            is_over.set()
        assert [each.result() for each in pumping] == [None] * 3
        assert not hub.transport.is_calling
        assert not hub.rejected

    def test_pumping_ends_when_it_is_told_to_even_before_it_begins_and_at_the_close(self, bench):
        hub, leaf, _, _ = bench.both()
        leaf.transport.end_pump()
        leaf.transport.pump(lambda: False, FOREVER_S)
        with ThreadPoolExecutor(1) as pool:
            pumping = pool.submit(leaf.transport.pump, lambda: False, FOREVER_S)
            leaf.transport.end_pump()
            pumping.result(10.0)
            pumping = pool.submit(leaf.transport.pump, lambda: False, FOREVER_S)
            bench.both()  # so some time has passed
            leaf.transport.close()
            pumping.result(10.0)
        leaf.transport.pump(lambda: False, FOREVER_S)
        leaf.transport.wake_pump()
        hub.transport.wake_pump()
        assert leaf.calls[-1] == "turn"

    def test_closing_is_safe_at_any_time_and_twice(self, bench: Bench) -> None:
        gone, address = bench.listener()
        gone.transport.close()
        hub, leaf, _, _ = bench.both()
        unused, listening, waiting = bench.end(2), bench.end(2), bench.end(3)
        listening.transport.listen(bench.anywhere())
        waiting.transport.dial(0, address)
        waiting.start()
        for end in (unused, listening, waiting, leaf, hub):
            end.transport.close()
            end.transport.close()
            end.transport.wake()

    def test_messages_accepted_before_close_still_arrive(self, bench: Bench) -> None:
        hub, leaf, _, to_hub = bench.both()
        assert leaf.send(to_hub, BULK, np.ones(12_000_000, np.uint8).data)
        assert leaf.send(to_hub, CONTROL, b"bye")
        leaf.transport.close()
        assert sorted(len(frames[0]) for frames in hub.hear(2)) == [3, 12_000_000]

    def test_the_last_tick_may_still_send(self, bench: Bench) -> None:
        hub, leaf, _, to_hub = bench.both()
        tick = leaf.on_tick

        def say_good_bye() -> float:
            leaf.transport.send(to_hub, CONTROL, [b"good-bye"])
            return tick()

        leaf.on_tick = say_good_bye  # type: ignore[method-assign]
        leaf.transport.close()
        assert {frames[0] for frames in hub.hear(1)} == {b"good-bye"}

    def test_closing_does_not_wait_for_a_peer_that_does_not_read(self, bench: Bench) -> None:
        hub, leaf, _, to_hub = bench.both()
        with standing_still(hub):
            for _ in range(10):
                assert leaf.send(to_hub, BULK, np.ones(10_000_000, np.uint8).data)
            started = monotonic()
            leaf.transport.close()
            assert monotonic() - started < CLOSE_TIMEOUT_S + 4.0  # of a busy machine
