"""The transport within one process: the contract, and the faults of its network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from ding_lite.errors import ConfigError
from ding_lite.parallel.transport.base import Lane, Transport
from ding_lite.parallel.transport.in_process import InprocTransport, Network
from ding_lite.testing import ManualClock
from tests.parallel.contract import PEERS, Bench, End, TransportContract

CONTROL, BULK = Lane.CONTROL, Lane.BULK


class InprocBench(Bench):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.network = Network()
        self._num_places = 0

    def make(self, node_id: int) -> Transport:
        return InprocTransport(self.network, node_id, peers=PEERS)

    def anywhere(self) -> str:
        self._num_places += 1
        return f"inproc://{self._num_places}"


@pytest.fixture
def bench() -> Iterator[InprocBench]:
    with ExitStack() as stack:
        yield InprocBench(stack)


class TestContract(TransportContract):
    """The contract of transports."""


def test_a_cut_loses_messages_under_way_and_notifies_both_ends(bench: InprocBench) -> None:
    hub, leaf, to_leaf, to_hub = bench.both()
    network = bench.network
    network.hold(1, 0)
    network.hold(0, 1, BULK)
    for lane in Lane:
        assert leaf.send(to_hub, lane, b"lost")
        assert hub.send(to_leaf, lane, lane.value)
    assert leaf.hear(1) == [[CONTROL.value]]
    assert (network.under_way(1, 0), network.under_way(0, 1)) == (2, 1)
    network.cut(1, 0)
    leaf.wait(lambda: leaf.downs == [to_hub])
    hub.wait(lambda: hub.gone == {to_leaf})
    assert (network.under_way(1, 0), network.under_way(0, 1)) == (0, 0)
    assert not leaf.send(to_hub, CONTROL, b"too early")
    network.release(1, 0)
    network.mend(0, 1)
    leaf.wait(lambda: leaf.ups == [(to_hub, 0)] * 2)
    assert leaf.send(to_hub, CONTROL, b"back")
    assert hub.hear(1) == [[b"back"]]
    assert leaf.contents == [[CONTROL.value]]


def test_a_cut_lasts_and_affects_only_its_two_nodes(bench: InprocBench) -> None:
    hub, address = bench.listener()
    bench.network.cut(0, 1)
    other, from_other = bench.dialler(address, 2)
    leaf = bench.end(1)
    leaf.transport.dial(0, address)
    leaf.start()
    assert other.send(from_other, CONTROL, b"I can")
    assert hub.hear(1) == [[b"I can"]]
    assert leaf.ups == []
    bench.network.mend(0, 1)
    leaf.wait(lambda: len(leaf.ups) == 1)
    assert other.downs == []


def test_held_messages_arrive_late_and_the_other_lane_overtakes_them(bench: InprocBench) -> None:
    hub, leaf, to_leaf, to_hub = bench.both()
    bench.network.hold(1, 0, CONTROL)
    for number in range(3):
        assert leaf.send(to_hub, CONTROL, b"urgent %d" % number)
    assert leaf.send(to_hub, BULK, b"large")
    assert hub.send(to_leaf, CONTROL, b"the other way")
    assert hub.hear(1) == [[b"large"]]
    assert leaf.hear(1) == [[b"the other way"]]
    bench.network.release(1, 0)
    assert hub.hear(4)[1:] == [[b"urgent %d" % number] for number in range(3)]
    assert (hub.gone, leaf.downs) == (set(), [])


def test_a_node_that_vanishes_takes_all_its_links_along_and_leaves_its_place(bench) -> None:
    hub, address = bench.listener()
    middle, at_middle = bench.end(1), bench.anywhere()
    middle.transport.listen(at_middle)
    middle.transport.dial(0, address)
    middle.start()
    middle.wait(lambda: len(middle.ups) == 1)
    (to_hub, _) = middle.ups[0]
    to_middle = bench.greet(hub, middle, to_hub)
    last, _ = bench.dialler(at_middle, 2, to=1)
    bench.network.hold(1, 0)
    assert middle.send(to_hub, CONTROL, b"never heard")
    bench.network.remove(1)
    hub.wait(lambda: hub.gone == {to_middle})
    last.wait(lambda: len(last.downs) == 1)
    assert not middle.send(to_hub, CONTROL, b"from beyond")
    bench.network.release(1, 0)

    again = bench.end(1)
    assert again.transport.listen(at_middle) == at_middle
    again.transport.dial(0, address)
    again.start()
    for end in (last, again):
        end.wait(lambda end=end: len(end.ups) > len(end.downs))
        assert end.send(end.ups[-1][0], CONTROL, b"hello again")
    assert again.hear(1) == hub.hear(1) == [[b"hello again"]]


def test_ticks_are_due_by_the_clock_of_the_node(clock: ManualClock) -> None:
    with closing(InprocTransport(Network(), 0, clock=clock)) as transport:
        end = End(transport)
        end.turn_every_s = 5.0
        end.start()
        for turn in range(1, 4):
            clock.until_waiting()
            assert end.num_ticks == turn
            clock.advance(5.0)
            end.wait(lambda turn=turn: end.num_ticks > turn)  # type: ignore[misc]


def test_a_frame_that_changes_on_its_way_is_seen_to_change(bench: InprocBench) -> None:
    """A test of a sender that breaks its promise must fail here as it would over a socket."""
    hub, leaf, _, to_hub = bench.both()
    bench.network.hold(1, 0)
    frame = bytearray(b"before")
    assert leaf.send(to_hub, BULK, memoryview(frame))
    frame[:] = b"behind"
    bench.network.release(1, 0)
    assert hub.hear(1) == [[b"behind"]]


def test_only_names_within_the_process_are_addresses(bench: InprocBench) -> None:
    end = bench.end(0)
    for address in ("tcp://127.0.0.1:0", "ipc:///run/x", "inproc://", "hub"):
        with pytest.raises(ConfigError):
            end.transport.listen(address)
        with pytest.raises(ConfigError):
            end.transport.dial(1, address)


def test_a_node_is_not_taken_for_another_one(bench: InprocBench) -> None:
    _, address = bench.listener(2)
    leaf = bench.end(1)
    leaf.transport.dial(0, address)
    leaf.start()
    leaf.wait(lambda: bool(leaf.refusals))
    assert leaf.refusals == [(0, "node 2 listens at inproc://1.")]
