"""Nodes that leave while the wire to their peers is cut, slow or gone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from ding_lite.parallel.link import drain
from ding_lite.runtime.messaging.inbox import FINISH
from tests.parallel.tcp import Recorder, wired

MEGABYTE = 2**20
NUM_EVENTS = 20


def in_background(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def seconds_of(act: Callable[[], None]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


@pytest.mark.parametrize("leaver", ["hub", "leaf"])
@pytest.mark.parametrize("fault", ["reset", "down"])
def test_a_fault_of_the_link_as_a_node_leaves_loses_no_event(leaver: str, fault: str) -> None:
    chance = random.Random(f"{leaver} {fault}")
    for _ in range(2):
        with wired() as (hub, leaf, wire):
            leaving, staying = (hub, leaf) if leaver == "hub" else (leaf, hub)
            recorder = Recorder(staying)
            if fault == "down":
                wire.blackhole()
                wire.cut()
            else:
                wire.cut_after(chance.randrange(2_000), chance.choice(("up", "down")))
            for number in range(NUM_EVENTS):
                leaving.emit("n", number, bytes(100))
            leaving.emit(FINISH)
            closing = in_background(leaving.close)
            closing.join(0.3)
            wire.heal()
            recorder.wait(lambda recorder=recorder: recorder.has_finished)  # type: ignore[misc]
            recorder.wait_for_numbers(NUM_EVENTS)
            closing.join(10.0)
            assert not closing.is_alive()


@pytest.mark.parametrize(
    ("num_events", "bytes_per_s"),
    [(6, 2 * MEGABYTE), pytest.param(20, 2 * MEGABYTE, marks=pytest.mark.slow)],
)
def test_a_slow_link_delays_the_end_and_loses_no_event(num_events, bytes_per_s, monkeypatch):
    monkeypatch.setattr(drain, "FLUSH_TIMEOUT_S", 1.0)
    with wired(linger=2.0) as (hub, leaf, wire):
        recorder = Recorder(leaf)
        wire.throttle(bytes_per_s)
        for number in range(num_events):
            hub.emit("n", number, np.zeros(MEGABYTE, np.uint8))
        hub.emit(FINISH)
        hub.close()
        recorder.wait(lambda: recorder.has_finished)
        assert recorder.numbers() == [*range(num_events)]


def test_nodes_that_leave_in_order_do_not_wait() -> None:
    with wired() as (hub, leaf, _):
        hub.emit(FINISH)
        leaf.emit(FINISH)
        other = in_background(leaf.close)
        assert seconds_of(hub.close) < 0.5
        assert seconds_of(other.join) < 0.5


def test_both_nodes_may_leave_while_the_link_is_down() -> None:
    with wired() as (hub, leaf, wire):
        recorder = {router: Recorder(router) for router in (hub, leaf)}
        wire.blackhole()
        wire.cut()
        for router in (hub, leaf):
            router.emit("n", 0)
            router.emit(FINISH)
        threads = [in_background(router.close) for router in (hub, leaf)]
        threads[0].join(0.3)
        wire.heal()
        for router in (hub, leaf):
            recorder[router].wait(lambda e=recorder[router]: e.has_finished)  # type: ignore[misc]
            assert recorder[router].numbers() == [0]
        for thread in threads:
            thread.join(10.0)
            assert not thread.is_alive()


@pytest.mark.parametrize(("lost_s", "least_s", "most_s"), [(0.0, 0.3, 3.0), (0.7, 0.0, 0.3)])
def test_a_node_waits_for_a_lost_peer_up_to_the_limit(lost_s, least_s, most_s, caplog) -> None:
    with wired(linger=0.6) as (hub, leaf, _):
        recorder = Recorder(hub)
        leaf.close(good_bye=False)
        recorder.wait(lambda: not hub.peers)
        threading.Event().wait(lost_s)
        hub.emit("n", 0)
        hub.emit(FINISH)
        assert least_s <= seconds_of(hub.close) < most_s
    assert "node 0 has left, and node 1 misses 2 events" in caplog.text


def test_a_node_does_not_wait_for_a_peer_that_the_launcher_reports_ended() -> None:
    with wired() as (hub, leaf, _):
        leaf.close(good_bye=False)
        Recorder(hub).wait(lambda: not hub.peers)
        hub.emit(FINISH)
        closing = in_background(hub.close)
        closing.join(0.2)
        assert closing.is_alive()
        hub.links.note_ended(1, incarnation=1)
        closing.join(2.0)
        assert not closing.is_alive()


def test_a_reported_end_of_a_former_incarnation_does_not_count(caplog) -> None:
    with wired() as (hub, leaf, wire):
        recorder = Recorder(leaf)
        hub.links.note_ended(1, incarnation=0)
        wire.blackhole()
        wire.cut()
        hub.emit(FINISH)
        closing = in_background(hub.close)
        closing.join(0.3)
        wire.heal()
        recorder.wait(lambda: recorder.has_finished)
        closing.join()
    assert "misses" not in caplog.text
