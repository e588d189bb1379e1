"""Relayed events: no loss, and back-pressure from a hung node."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from ding_lite.errors import TransportError
from ding_lite.parallel.link import sent
from ding_lite.parallel.link.session import Session
from ding_lite.parallel.router import node_router as router_module
from ding_lite.runtime.messaging.inbox import FINISH
from ding_lite.testing import Cluster
from tests.nodes import delivered
from tests.parallel import tcp
from tests.parallel.tcp import wait_until
from tests.parallel.test_clusters import SEEDS

WINDOW = 40
NUM_EVENTS = 400
KILOBYTE = 1024


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "MAX_EVENTS", WINDOW)
    monkeypatch.setattr(sent, "MAX_EVENT_BYTES", WINDOW * KILOBYTE)


class Recorder(tcp.Recorder):
    """Record the numbers that arrive at a node."""

    def wait_for(self, sender: int, count: int) -> None:
        self.wait(lambda: len(self.of(sender)) >= count, what=f"{count} events of node {sender}")

    def check(self, sender: int, count: int = NUM_EVENTS) -> None:
        """Check that all have arrived once and in order."""
        self.wait_for(sender, count)
        assert self.of(sender) == list(range(count))


class Job:
    """A tree of nodes, with one that emits on a thread."""

    def __init__(self, cluster: Cluster, pool: ThreadPoolExecutor) -> None:
        self.cluster = cluster
        self.network = cluster.network
        self.recorders = [Recorder(router) for router in cluster.routers]
        self._pool = pool

    def emit(self, node: int, count: int = NUM_EVENTS, *, size: int = 0) -> Future[None]:
        def emit_all() -> None:
            for number in range(count):
                self.cluster.routers[node].emit("n", number, np.zeros(size, np.uint8))

        return self._pool.submit(emit_all)

    def session(self, node: int, peer: int) -> Session:
        return self.cluster.routers[node].links.sessions[peer]

    def is_full(self, node: int, peer: int) -> bool:
        return not self.session(node, peer).events.has_room

    def wait_until_full(self, *path: int) -> None:
        """Wait until the windows of all nodes on a path are full."""
        for node, peer in reversed([*pairwise(path)]):
            wait_until(partial(self.is_full, node, peer), f"node {node} has room for {peer}")

    def num_waiting(self, node: int, peer: int) -> int:
        return self.session(node, peer).events.num_unacknowledged


@contextmanager
def tree(num_nodes: int = 7, topology: str = "tree:2") -> Iterator[Job]:
    with Cluster(num_nodes, topology) as cluster, ThreadPoolExecutor(4) as pool:
        try:
            yield Job(cluster, pool)
        finally:
            cluster.network.heal()


@pytest.mark.parametrize(
    ("topology", "num_nodes", "path", "size", "fault"),
    [
        ("tree:2", 7, (0, 1, 3), 0, "hold"),
        ("tree:2", 7, (0, 1, 3), 4 * KILOBYTE, "cut"),
        ("tree:1", 5, range(5), 0, "hold"),
    ],
)
def test_a_sender_blocks_for_a_hung_node_behind_hubs(topology, num_nodes, path, size, fault):
    *_, hub, hung = path
    with tree(num_nodes, topology) as job:
        getattr(job.network, fault)(hub, hung)
        emitting = job.emit(0, size=size)
        job.wait_until_full(*path)
        assert not emitting.done()
        num_emitted = job.session(0, 1).events.num_sent
        assert all(job.num_waiting(*link) <= WINDOW + 1 for link in pairwise(path))
        for node in {*range(1, num_nodes)} - {hung}:  # the others do not wait
            job.recorders[node].wait_for(0, num_emitted)
        job.network.heal()
        emitting.result(15.0)
        for node in range(1, num_nodes):
            job.recorders[node].check(0)


def test_a_sender_behind_a_hub_blocks_for_a_hung_root() -> None:
    with tree() as job:
        job.network.hold(1, 0)
        emitting = [job.emit(node) for node in (1, 3, 4)]
        for leaf in (3, 4):
            job.wait_until_full(leaf, 1, 0)
        assert not any(each.done() for each in emitting)
        assert job.num_waiting(1, 0) <= 3 * WINDOW
        job.network.heal()
        for node, each in zip((1, 3, 4), emitting, strict=True):
            each.result(15.0)
            job.recorders[0].check(node)


def test_emit_raises_when_a_node_behind_a_hub_stays_hung(monkeypatch) -> None:
    monkeypatch.setattr(router_module, "EMIT_TIMEOUT_S", 0.5)
    with tree() as job:
        job.network.cut(1, 3)
        with pytest.raises(TransportError, match=r"Node 1 has not.*`n` was not.*or one behind it"):
            job.emit(0).result(15.0)
        num_emitted = len(job.recorders[4].of(0))
        job.network.heal()
        job.recorders[3].check(0, num_emitted)  # and what was sent before is not lost


def test_an_event_that_is_not_sent_to_a_hung_node_reaches_no_other_node(monkeypatch) -> None:
    """So a program that emits it again does not send it twice."""
    monkeypatch.setattr(router_module, "EMIT_TIMEOUT_S", 0.5)
    with tree(4, "star") as job:
        job.network.cut(0, 2)
        for _ in range(2):
            with pytest.raises(TransportError, match=r"Node 2 has not.*`n` was not"):
                job.emit(0).result(15.0)
        num_emitted = job.session(0, 2).events.last_posted
        job.network.heal()
        job.cluster.routers[0].emit("n", -1)
        for node in (1, 2, 3):
            job.recorders[node].wait(lambda node=node: -1 in job.recorders[node].of(0))  # type: ignore[misc]
            assert len(job.recorders[node].of(0)) == num_emitted + 1


def test_other_nodes_wait_for_a_hung_node_until_it_is_gone() -> None:
    with tree() as job:
        job.network.hold(3, 1)
        emitting = job.emit(0)
        job.wait_until_full(0, 1, 3)
        job.network.release(3, 1)
        job.cluster.routers[3].close()
        emitting.result(15.0)
        for node in (1, 2, 4, 5, 6):
            job.recorders[node].check(0)


def test_queued_events_go_to_the_next_incarnation_of_a_killed_node() -> None:
    with tree() as job:
        job.network.cut(1, 3)
        emitting = job.emit(0)
        job.wait_until_full(0, 1, 3)
        job.cluster.restart(3)
        recorder = Recorder(job.cluster.routers[3])
        job.network.heal()
        emitting.result(15.0)
        recorder.check(0)


def test_calls_items_and_finish_pass_a_branch_with_blocked_events() -> None:
    with tree() as job:
        job.network.hold(1, 3)
        emitting = job.emit(0)
        job.wait_until_full(0, 1, 3)
        job.cluster.routers[4].register("double", lambda value: 2 * value)
        assert job.cluster.routers[0].call(4, "double", 21, timeout=10.0) == 42
        assert job.cluster.routers[0].send("work", "item", to="node.4", timeout=10.0)
        assert job.cluster.routers[4].receive("work", timeout=10.0)
        job.cluster.routers[0].emit(FINISH)  # without room for another event
        job.recorders[1].wait(lambda: job.recorders[1].has_finished)
        job.network.heal()
        emitting.result(15.0)


@SEEDS
def test_events_arrive_once_and_in_order_over_broken_and_stalled_links(seed: int) -> None:
    rng = random.Random(seed)
    links = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)]
    with tree() as job:
        emitting = [job.emit(node, size=rng.choice([0, 200, 2_000])) for node in (0, 1, 3, 6)]
        for goal in range(0, NUM_EVENTS, 20):
            for _ in range(4):
                one, other = rng.sample(rng.choice(links), 2)
                what = rng.choice(["cut", "hold", "release"])
                getattr(job.network, what)(one, other)
            job.network.heal()
            job.recorders[rng.randrange(1, 7)].wait_for(0, goal)
        for each in emitting:
            each.result(15.0)
        for node in range(1, 7):
            job.recorders[node].check(0)
        for node in (1, 3, 6):
            job.recorders[0].check(node)
        delivered(*job.cluster.routers)


@SEEDS
def test_events_arrive_once_and_in_order_when_hubs_are_killed(seed: int) -> None:
    rng = random.Random(seed)
    with tree() as job:
        if seed % 2:
            job.network.hold(3, 1)  # so a hub is killed with a full window
        emitting = [job.emit(node, size=rng.choice([0, 200, 2_000])) for node in (0, 3, 6)]
        if seed % 2:
            job.wait_until_full(0, 1)
            job.recorders[4].wait_for(0, 10)
            job.cluster.restart(1)
            job.network.heal()
        for goal in range(0, NUM_EVENTS, 40):
            job.recorders[rng.choice([3, 4, 5, 6])].wait_for(0, goal)
            job.cluster.restart(rng.choice([1, 2]))
        for each in emitting:
            each.result(15.0)
        for node in (3, 4, 5, 6):
            job.recorders[node].check(0)
        for node in (3, 6):
            job.recorders[0].check(node)
