"""Two nodes over a faulty wire: cut, blocked, slow or silent for a while."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ding_lite.errors import PeerLost
from ding_lite.parallel.router.node_router import NodeRouter
from tests.parallel.proxy import DOWN, UP, Proxy
from tests.parallel.tcp import Recorder, hub_spec, leaf_spec, wired

MEGABYTE = 2**20


@dataclass
class Job:
    """Node 0, which listens, node 1, which dials, and the proxy between them."""

    hub: NodeRouter
    leaf: NodeRouter
    wire: Proxy
    hub_recorder: Recorder
    leaf_recorder: Recorder

    def both_have(self, *events: str) -> None:
        """Wait until each node has these events of the other, in this order."""
        for recorder, peer in ((self.hub_recorder, 1), (self.leaf_recorder, 0)):
            expected = [(peer, event, (peer,)) for event in events]
            recorder.wait(lambda recorder=recorder: len(fates(recorder)) >= len(events))  # type: ignore[misc]
            assert fates(recorder) == expected

    def work_goes_on(self) -> None:
        """Check that events, calls and ctx values arrive in both directions."""
        for node, peer, recorder in (
            (self.hub, self.leaf, self.leaf_recorder),
            (self.leaf, self.hub, self.hub_recorder),
        ):
            mark = random.randrange(2**60)
            node.publish_ctx({"mark": mark})
            node.emit("mark", mark)
            recorder.wait(lambda e=recorder, m=mark: e.events[-1:] and e.events[-1][2] == (m,))  # type: ignore[misc]
            recorder.wait(lambda e=recorder, m=mark, n=node: e.ctx[n.node_id].get("mark") == m)  # type: ignore[misc]
            assert node.call(peer.node_id, "echo", mark, timeout=10.0) == mark


def fates(recorder: Recorder) -> list[Any]:
    return [event for event in recorder.events if event[1].startswith("node_")]


@pytest.fixture
def job() -> Iterator[Job]:
    with wired() as (hub, leaf, wire):
        for router in (hub, leaf):
            router.register("echo", lambda value: value)
        yield Job(hub, leaf, wire, Recorder(hub), Recorder(leaf))
        wire.heal()


def test_a_cut_is_detected_on_both_sides_and_recovers(job: Job) -> None:
    for number, reset in enumerate((True, False, True), start=1):
        job.wire.cut(reset=reset)
        job.both_have(*["node_lost", "node_joined"] * number)
    job.work_goes_on()


@pytest.mark.parametrize("count", [1_800, pytest.param(6_000, marks=pytest.mark.slow)])
def test_events_arrive_once_and_in_order_across_random_cuts(job: Job, count: int) -> None:
    chance = random.Random(1)
    for number in range(count):
        if number % 150 == 0:
            way, num_bytes = chance.choice((UP, DOWN)), chance.randrange(4_000)
            job.wire.cut_after(num_bytes, way, reset=chance.random() < 0.5)
        for node in (job.leaf, job.hub):
            node.emit("n", number, bytes(chance.randrange(100)))
        if number % 150 == 149:
            job.wire.wait_for_cut()
    for recorder in (job.hub_recorder, job.leaf_recorder):
        recorder.wait_for_numbers(count)
    assert job.wire.num_connections > count // 150


@pytest.mark.parametrize("way", [UP, DOWN])
def test_a_large_event_cut_in_the_middle_arrives_once(job: Job, way: str) -> None:
    sender, recorder = (job.leaf, job.hub_recorder) if way == UP else (job.hub, job.leaf_recorder)
    for number in range(6):
        job.wire.cut_after(200_000 * number + 1_000, way, reset=number % 2 == 0)
        sender.emit("n", number, np.full(MEGABYTE // 8, number))
        job.wire.wait_for_cut()
    recorder.wait_for_numbers(6)
    for _, event, args in recorder.events:
        if event == "n":
            assert (args[1] == np.full(MEGABYTE // 8, args[0])).all()


def test_the_newest_ctx_arrives_complete_after_cuts(job: Job) -> None:
    for number in range(6):
        job.wire.cut_after(MEGABYTE * (number % 4) + 1_000, reset=number % 2 == 0)
        job.leaf.publish_ctx({"n": number, "w": np.full(4 * MEGABYTE // 8, number)})
        job.leaf.emit("go")
        job.wire.wait_for_cut()
    job.hub_recorder.wait(lambda: job.hub_recorder.ctx[1].get("n") == 5)
    assert (job.hub_recorder.ctx[1]["w"] == 5).all()


def test_a_handshake_or_event_cut_anywhere_arrives_once(job: Job) -> None:
    """The first bytes of a connection are the handshakes, then come events."""
    cuts = [(way, num_bytes) for way in (UP, DOWN) for num_bytes in (1, 300, 700, 1_200)]
    for number, (way, num_bytes) in enumerate(cuts):
        job.wire.cut()
        job.wire.cut_after(num_bytes, way)
        job.leaf.emit("n", number)
        job.hub.emit("n", number)
        job.wire.wait_for_cut()
    for recorder in (job.hub_recorder, job.leaf_recorder):
        recorder.wait_for_numbers(len(cuts))
    job.work_goes_on()


@pytest.mark.parametrize("way", [UP, DOWN])
def test_a_partition_is_detected_on_both_sides_and_recovers(job: Job, way: str) -> None:
    """Late messages arrive in order, and the ctx is the newest."""
    job.hub.register("never", Future)
    answer = job.leaf.ask(0, "never")
    job.wire.blackhole(way)
    for number in range(1_000):
        for node in (job.hub, job.leaf):
            node.emit("n", number)
            node.publish_ctx({"n": number})
    job.both_have("node_lost")
    for call in (answer, job.leaf.ask(0, "echo", 1), job.hub.ask(1, "echo", 1)):
        with pytest.raises(PeerLost):
            call.result(10.0)
    for node in (job.hub, job.leaf):
        node.emit("n", 1_000)
        node.publish_ctx({"n": 1_000})

    job.wire.heal()
    for recorder, peer in ((job.hub_recorder, 1), (job.leaf_recorder, 0)):
        recorder.wait_for_numbers(1_001)
        recorder.wait(lambda recorder=recorder, peer=peer: recorder.ctx[peer].get("n") == 1_000)  # type: ignore[misc]
    job.both_have("node_lost", "node_joined")
    job.work_goes_on()


def test_a_cut_link_affects_no_other_link() -> None:
    with (
        closing(NodeRouter(hub_spec(3))) as hub,
        Proxy(str(hub.address)) as wire,
        closing(NodeRouter(leaf_spec(1, wire.address))) as cut_off,
        closing(NodeRouter(leaf_spec(2, hub.address))) as leaf,
    ):
        hub.wait_ready(10.0)
        hub_recorder, leaf_recorder, cut_off_recorder = map(Recorder, (hub, leaf, cut_off))
        wire.blackhole()
        for number in range(500):
            hub.emit("n", number)
        leaf_recorder.wait_for_numbers(500)
        hub_recorder.wait(lambda: bool(fates(hub_recorder)))
        assert fates(hub_recorder) == [(1, "node_lost", (1,))]
        assert fates(leaf_recorder) == []
        assert leaf.peers == (0,)
        wire.heal()
        cut_off_recorder.wait_for_numbers(500)


def test_a_redialled_node_is_back_though_its_peer_still_holds_the_old_link(job: Job) -> None:
    job.wire.blackhole()  # node 0 cannot notice that node 1 has hung up
    job.leaf.links.redial(0, str(job.hub.address))
    job.both_have("node_lost", "node_joined")
    job.work_goes_on()


def test_bytes_written_one_by_one_make_the_same_messages(job: Job) -> None:
    job.wire.split()
    job.wire.cut()  # so that the greetings are split too
    job.both_have("node_lost", "node_joined")
    job.leaf.emit("n", 0, np.arange(2_000))
    job.hub_recorder.wait(lambda: job.hub_recorder.numbers() == [0])
    np.testing.assert_array_equal(job.hub_recorder.events[-1][2][1], np.arange(2_000))
    job.work_goes_on()
    assert job.hub.links.dropped.count == job.leaf.links.dropped.count == 0


def test_a_long_delay_is_no_loss(job: Job) -> None:
    job.wire.delay(0.3)
    for number in range(20):
        job.leaf.emit("n", number)
        job.leaf.publish_ctx({"n": number, "w": np.full(MEGABYTE // 8, number)})
    job.hub_recorder.wait_for_numbers(20)
    job.hub_recorder.wait(lambda: job.hub_recorder.ctx[1].get("n") == 19)
    assert (job.hub_recorder.ctx[1]["w"] == 19).all()
    assert fates(job.hub_recorder) == fates(job.leaf_recorder) == []


@pytest.mark.parametrize(("way", "num_bytes"), [(UP, 6 * MEGABYTE), (DOWN, 12 * MEGABYTE)])
def test_a_large_event_on_a_slow_wire_arrives_at_the_first_attempt(job, way, num_bytes) -> None:
    """It takes longer than the peer timeout of 3 s, as one frame and as many chunks."""
    sender, recorder = (job.leaf, job.hub_recorder) if way == UP else (job.hub, job.leaf_recorder)
    job.wire.throttle(num_bytes / 4.0)
    sender.emit("n", 0, np.zeros(num_bytes, np.uint8))
    sender.emit("n", 1)
    recorder.wait(lambda: recorder.numbers() == [0, 1], 15.0)
    assert fates(job.hub_recorder) == fates(job.leaf_recorder) == []
