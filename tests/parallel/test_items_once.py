"""Each stream item is taken once, also when learners are cut off for a while."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.messaging.streams import ItemId
from ding_lite.testing import Cluster, ManualClock
from tests.parallel.tcp import wait_until

CUT_S = 8
"""Seconds of a cut: more than the peer timeout."""


class Takers:
    def __init__(self, *routers: NodeRouter) -> None:
        self.taken: list[tuple[int, ItemId]] = []
        self._routers = routers
        self._is_over = False
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(len(routers))
        self._threads = [self._pool.submit(self._take, router) for router in routers]

    def _take(self, router: NodeRouter) -> None:
        while item := router.receive("work", timeout=None, until=lambda: self._is_over):
            with self._changed:
                self.taken.append((item.value, item.id))
                self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.taken) >= count, 20.0), (
                f"only {len(self.taken)} of {count} items were taken"
            )

    def end(self) -> None:
        self._is_over = True
        for router in self._routers:
            router.wake()
        for thread in self._threads:
            thread.result(10.0)
        self._pool.shutdown()


@contextmanager
def taking(*routers: NodeRouter) -> Iterator[Takers]:
    takers = Takers(*routers)
    try:
        yield takers
    finally:
        takers.end()


def check(takers: Takers, count: int) -> None:
    """Check that each item was taken once, and that ids are unique."""
    taken = Counter(value for value, _ in takers.taken)
    assert taken == Counter(range(count)), {k: n for k, n in taken.items() if n != 1}
    assert len({item_id for _, item_id in takers.taken}) == count


@pytest.mark.parametrize(("topology", "seed"), [("mesh", 0), ("tree:2", 1)])
def test_a_learner_cut_off_for_8_s_takes_no_item_of_another(
    clock: ManualClock, topology: str, seed: int
) -> None:
    rng, count = random.Random(seed), 0
    with Cluster(3, topology, clock=clock) as cluster, taking(*cluster.routers[1:]) as takers:
        hub, *learners = cluster.routers
        for router in learners:
            router.register("echo", lambda value: value)
        for _ in range(15):
            wait_until(lambda: hub.peers == (1, 2), "a learner has not come back")
            cut_off, other = rng.sample([1, 2], 2)
            cluster.network.hold(cut_off, 0)  # no answer comes back any more
            for _ in range(4):
                assert hub.send("work", count, to=["node.1", "node.2"], timeout=10.0)
                count += 1
            takers.wait(count)
            cluster.network.cut(0, cut_off)
            for _ in range(CUT_S):
                clock.advance(1.0)
                assert hub.call(other, "echo", count) == count  # or they would miss each other too
            cluster.network.heal()
            takers.wait(count)
        check(takers, count)
