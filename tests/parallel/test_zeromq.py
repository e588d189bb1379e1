"""What every transport promises, over ipc and over tcp."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from zmq.utils import z85

from ding_lite.errors import TransportError
from ding_lite.parallel.security import Key, load_key, make_key
from ding_lite.parallel.transport.base import Frame, Lane, Link
from ding_lite.parallel.transport.chunks import CHUNK_ABOVE, MAX_FRAME_BYTES
from ding_lite.parallel.transport.zeromq import ZeroMQTransport

CONTROL, BULK = Lane.CONTROL, Lane.BULK


class End:
    """One node's transport, with a sink that notes everything and speaks on its turn."""

    def __init__(self, transport: ZeroMQTransport) -> None:
        self.transport = transport
        self.messages: list[tuple[Link, list[Frame]]] = []
        self.ups: list[tuple[Link, int]] = []
        self.downs: list[Link] = []
        self.refusals: list[tuple[int, str]] = []
        self.rejected: list[str] = []
        self.num_doubts = 0
        self._todo: list[Callable[[], None]] = []
        self._changed = threading.Condition()

    def start(self) -> End:
        self.transport.start(self)
        return self

    def do(self, call: Callable[[], Any]) -> Any:
        """Call something on the transport's thread, and return what it returns."""
        results: list[Any] = []

        def act() -> None:
            result = call()
            with self._changed:
                results.append(result)
                self._changed.notify_all()

        with self._changed:
            self._todo.append(act)
        self.transport.wake()
        self.wait(lambda: bool(results))
        return results[0]

    def send(self, link: Link, lane: Lane, *frames: Frame) -> bool:
        return bool(self.do(lambda: self.transport.send(link, lane, frames)))

    def wait(self, ready: Callable[[], bool], timeout: float = 10.0) -> None:
        with self._changed:
            assert self._changed.wait_for(ready, timeout)

    def _note(self, where: list[Any], what: Any) -> None:
        with self._changed:
            where.append(what)
            self._changed.notify_all()

    def on_up(self, link: Link, node_id: int) -> None:
        self._note(self.ups, (link, node_id))

    def on_message(self, link: Link, frames: list[Frame]) -> None:
        self._note(self.messages, (link, frames))

    def on_down(self, link: Link) -> None:
        self._note(self.downs, link)

    def on_doubt(self) -> None:
        with self._changed:
            self.num_doubts += 1
            self._changed.notify_all()

    def on_refused(self, node_id: int, reason: str) -> None:
        self._note(self.refusals, (node_id, reason))

    def on_rejected(self, reason: str) -> None:
        self._note(self.rejected, reason)

    def on_turn(self) -> float:
        with self._changed:
            todo, self._todo = self._todo, []
        for act in todo:
            act()
        return 1.0


class Bench:
    """Makes ends that end with the test."""

    def __init__(self, scheme: str, directory: Path, stack: ExitStack) -> None:
        self.scheme = scheme
        self.key_file = str(make_key(directory / "key"))
        self._directory = directory
        self._stack = stack

    def end(self, node_id: int, *, peers: tuple[int, ...] = (1, 2, 3)) -> End:
        transport = ZeroMQTransport(node_id, peers=peers, key_file=self.key_file)
        self._stack.callback(transport.close)
        return End(transport)

    def listener(self, *, at: str | None = None) -> tuple[End, str]:
        """Start node 0; return also where it listens."""
        end = self.end(0)
        anywhere = "tcp://127.0.0.1:0" if self.scheme == "tcp" else f"ipc://{self._directory}/hub"
        address = end.transport.listen(at or anywhere)
        return end.start(), address

    def dialler(self, address: str, node_id: int = 1) -> tuple[End, Link]:
        """Start a node that dials node 0; return also the link, once it is up."""
        end = self.end(node_id)
        end.transport.dial(0, address)
        end.start()
        end.wait(lambda: bool(end.ups))
        return end, end.ups[0][0]


@pytest.fixture(params=["ipc", "tcp"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(request.param, tmp_path, stack)


def both(bench: Bench) -> tuple[End, End, Link, Link]:
    """Start two ends and let them meet; return the link as each of them knows it."""
    hub, address = bench.listener()
    leaf, link = bench.dialler(address)
    assert leaf.send(link, CONTROL, b"hello")
    hub.wait(lambda: len(hub.messages) == 1)
    return hub, leaf, hub.messages.pop()[0], link


def contents(end: End) -> list[list[bytes]]:
    return [[bytes(frame) for frame in frames] for _, frames in end.messages]


@pytest.mark.parametrize("lane", [CONTROL, BULK])
def test_messages_arrive_whole_in_both_directions(bench: Bench, lane: Lane) -> None:
    hub, leaf, to_leaf, to_hub = both(bench)
    sent: list[list[Frame]] = [[b"head", b"", bytes(100_000)], [b""], [b"a", memoryview(b"bc")]]
    for frames in sent:
        assert leaf.send(to_hub, lane, *frames)
        assert hub.send(to_leaf, lane, *frames)
    for end, link in ((hub, to_leaf), (leaf, to_hub)):
        end.wait(lambda end=end: len(end.messages) == 3)  # type: ignore[misc]
        assert contents(end) == [[bytes(frame) for frame in frames] for frames in sent]
        assert {each for each, _ in end.messages} == {link}


def test_a_lane_keeps_its_order(bench: Bench) -> None:
    hub, leaf, _, to_hub = both(bench)

    def burst() -> bool:
        return all(
            leaf.transport.send(to_hub, lane, [lane.value, b"%d" % number])
            for number in range(2_000)
            for lane in Lane
        )

    assert leaf.do(burst)
    hub.wait(lambda: len(hub.messages) == 4_000)
    for lane in Lane:
        numbers = [int(bytes(f[1])) for _, f in hub.messages if bytes(f[0]) == lane.value]
        assert numbers == list(range(2_000))


@pytest.mark.deadline(60)
def test_a_hundred_megabytes_arrive_whole_for_arrays_to_lie_on(bench: Bench) -> None:
    hub, leaf, _, to_hub = both(bench)
    weights = np.arange(100_000_000 // 8, dtype=np.float64)
    assert leaf.send(to_hub, BULK, b"h" * 56, b"meta", weights.data, b"", b"end")
    hub.wait(lambda: len(hub.messages) == 1, 40.0)
    head, meta, block, nothing, end = hub.messages[0][1]
    assert [bytes(part) for part in (head, meta, nothing, end)] == [b"h" * 56, b"meta", b"", b"end"]
    found = np.frombuffer(block, np.float64)
    np.testing.assert_array_equal(found, weights)
    assert found.flags.aligned
    assert found.flags.writeable


@pytest.mark.deadline(60)
def test_what_is_urgent_overtakes_what_is_large(bench: Bench) -> None:
    hub, leaf, _, to_hub = both(bench)
    large = np.zeros(60_000_000, np.uint8).data

    def speak() -> bool:
        sent = [leaf.transport.send(to_hub, BULK, [b"large", large]) for _ in range(4)]
        return all([*sent, leaf.transport.send(to_hub, CONTROL, [b"urgent"])])

    assert leaf.do(speak)
    hub.wait(lambda: len(hub.messages) == 5, 40.0)
    order = [bytes(frames[0]) for _, frames in hub.messages]
    assert order.index(b"urgent") < 4


def test_messages_at_the_edge_of_being_chunked_arrive(bench: Bench) -> None:
    hub, leaf, _, to_hub = both(bench)
    for size in (CHUNK_ABOVE - 1, CHUNK_ABOVE, CHUNK_ABOVE + 1):
        assert leaf.send(to_hub, CONTROL, np.full(size, size % 251, np.uint8).data)
    hub.wait(lambda: len(hub.messages) == 3)
    for (_, [frame]), size in zip(
        hub.messages, (CHUNK_ABOVE - 1, CHUNK_ABOVE, CHUNK_ABOVE + 1), strict=True
    ):
        array = np.frombuffer(frame, np.uint8)
        assert len(array) == size
        assert (array == size % 251).all()


def test_a_broken_link_is_noticed_and_comes_back(bench: Bench) -> None:
    hub, address = bench.listener()
    leaf, to_hub = bench.dialler(address)
    hub.transport.close()
    leaf.wait(lambda: leaf.downs == [to_hub])
    assert not leaf.send(to_hub, CONTROL, b"is anybody there")
    again, _ = bench.listener(at=address)
    leaf.wait(lambda: leaf.ups == [(to_hub, 0)] * 2)
    assert leaf.send(to_hub, BULK, b"welcome back")
    again.wait(lambda: contents(again) == [[b"welcome back"]])
    assert leaf.refusals == []


def test_a_peer_that_has_gone_leaves_a_doubt_that_a_send_settles(bench: Bench) -> None:
    hub, address = bench.listener()
    leaf, to_hub = bench.dialler(address)
    leaf.send(to_hub, CONTROL, b"hello")
    hub.wait(lambda: len(hub.messages) == 1)
    to_leaf = hub.messages[0][0]
    assert hub.send(to_leaf, BULK, b"hello")
    leaf.transport.close()
    hub.wait(lambda: hub.num_doubts >= 2)
    assert not hub.send(to_leaf, CONTROL, b"still there")
    assert not hub.send(to_leaf, BULK, b"still there")


def test_nothing_is_sent_to_whom_nobody_knows(bench: Bench) -> None:
    hub, _, to_leaf, _ = both(bench)
    stranger = Link(b"nobody" + to_leaf[6:])
    assert not hub.send(stranger, CONTROL, b"hello")


def test_dialling_may_come_before_listening(bench: Bench) -> None:
    hub, address = bench.listener()
    hub.transport.close()
    leaf = bench.end(1)
    leaf.transport.dial(0, address)
    leaf.start()
    again, _ = bench.listener(at=address)
    leaf.wait(lambda: len(leaf.ups) == 1)
    assert leaf.send(leaf.ups[0][0], CONTROL, b"hello")
    again.wait(lambda: contents(again) == [[b"hello"]])


def test_who_has_sent_a_message_is_proved_on_tcp_alone(bench: Bench) -> None:
    hub, address = bench.listener()
    for node_id in (1, 3):
        leaf, to_hub = bench.dialler(address, node_id)
        assert leaf.send(to_hub, CONTROL, b"%d" % node_id)
        assert leaf.transport.owner(to_hub) == 0
    hub.wait(lambda: len(hub.messages) == 2)
    for link, frames in hub.messages:
        owner = hub.transport.owner(link)
        assert owner == (int(bytes(frames[0])) if bench.scheme == "tcp" else None)


def test_a_place_that_is_taken_is_named(bench: Bench, tmp_path: Path) -> None:
    if bench.scheme == "tcp":
        with closing(socket.create_server(("127.0.0.1", 0))) as taken:
            address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(TransportError, match=r"cannot listen on tcp://.* Is another job"):
                bench.listener(at=address)
    else:
        (tmp_path / "hub").mkdir()
        with pytest.raises(TransportError, match="cannot listen on ipc://"):
            bench.listener()


def test_closing_is_safe_at_any_time_and_twice(bench: Bench) -> None:
    hub, leaf, _, _ = both(bench)
    idle = bench.end(2)
    for end in (idle, leaf, hub):
        end.transport.close()
        end.transport.close()
        end.transport.wake()


def test_what_was_taken_before_closing_still_arrives(bench: Bench) -> None:
    hub, leaf, _, to_hub = both(bench)
    assert leaf.send(to_hub, BULK, np.ones(20_000_000, np.uint8).data)
    assert leaf.send(to_hub, CONTROL, b"bye")
    leaf.transport.close()
    hub.wait(lambda: len(hub.messages) == 2)
    assert sorted(len(frames[0]) for _, frames in hub.messages) == [3, 20_000_000]


def test_nodes_start_and_stop_many_times_without_a_trace(bench: Bench) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        hub, leaf, _, _ = both(bench)
        hub.transport.close()
        leaf.transport.close()
    assert len(os.listdir("/proc/self/fd")) <= before


# -- a peer with the right key and bad manners ---------------------------------------------


def raw_peer(context: zmq.Context[Any], bench: Bench, route: bytes) -> Any:
    """Make a bare socket that is let in as node 2."""
    peer = context.socket(zmq.DEALER)
    peer.linger = 0
    peer.setsockopt(zmq.ROUTING_ID, route)
    if bench.scheme == "tcp":
        key: Key = load_key(bench.key_file)
        own = z85.encode(key.of_dialler(2))
        peer.curve_secretkey = own
        peer.curve_publickey = zmq.curve_public(own)
        peer.curve_serverkey = zmq.curve_public(z85.encode(key.of_listener(0)))
    return peer


def test_a_frame_that_is_too_large_cuts_its_sender_off_and_nobody_else(bench: Bench) -> None:
    hub, leaf, _, to_hub = both(bench)
    address = leaf.transport._dealers[to_hub].address
    with zmq.Context() as context, raw_peer(context, bench, b"raw-c") as peer:
        peer.connect(address)
        peer.send(b"fine")
        hub.wait(lambda: contents(hub) == [[b"fine"]])
        peer.send(bytes(MAX_FRAME_BYTES + 1))
        hub.wait(lambda: hub.num_doubts > 0)  # its connection is gone
    assert leaf.send(to_hub, CONTROL, b"and I")
    hub.wait(lambda: contents(hub) == [[b"fine"], [b"and I"]])


def test_a_message_of_neither_lane_is_rejected(bench: Bench) -> None:
    hub, leaf, _, to_hub = both(bench)
    address = leaf.transport._dealers[to_hub].address
    with zmq.Context() as context, raw_peer(context, bench, b"raw-?") as peer:
        peer.connect(address)
        peer.send_multipart([b"hello", b"there"])
        hub.wait(lambda: hub.rejected == ["A message is of neither lane."])
    assert leaf.send(to_hub, CONTROL, b"and I")
    hub.wait(lambda: contents(hub) == [[b"and I"]])


def test_chunks_of_nothing_are_rejected(bench: Bench) -> None:
    hub, leaf, _, to_hub = both(bench)
    address = leaf.transport._dealers[to_hub].address
    with zmq.Context() as context, raw_peer(context, bench, b"raw-b") as peer:
        peer.connect(address)
        for _ in range(10):
            peer.send_multipart([b"DCHK\1\2" + bytes(22), b"x"])
        hub.wait(lambda: len(hub.rejected) == 10)
    assert leaf.send(to_hub, BULK, np.ones(20_000_000, np.uint8).data)
    hub.wait(lambda: len(hub.messages) == 1)


def test_a_sink_that_raises_does_not_end_the_transport(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    hub, leaf, _, to_hub = both(bench)
    note = hub.on_message

    def take(link: Link, frames: list[Frame]) -> None:
        if bytes(frames[0]) == b"poison":
            raise RuntimeError("a listener's own error")
        note(link, frames)

    hub.on_message = take  # type: ignore[method-assign]
    for frame in (b"poison", b"poison", b"fine"):
        assert leaf.send(to_hub, CONTROL, frame)
    hub.wait(lambda: contents(hub) == [[b"fine"]])
    assert caplog.text.count("could not be handled") == 1
    assert "a listener's own error" in caplog.text
