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
from ding_lite.testing import Cluster
from tests.parallel.tcp import wait_until

CUT_S = 8
"""Seconds of a cut: more than the peer timeout."""


@contextmanager
def taking(*routers: NodeRouter) -> Iterator[list[tuple[int, ItemId]]]:
    """Let nodes take items meanwhile; give the values and ids of those that were taken."""
    taken: list[tuple[int, ItemId]] = []
    is_over = threading.Event()

    def take(router: NodeRouter) -> None:
        while item := router.receive("work", timeout=None, until=is_over.is_set):
            taken.append((item.value, item.id))

    with ThreadPoolExecutor(len(routers)) as pool:
        threads = [pool.submit(take, router) for router in routers]
        try:
            yield taken
        finally:
            is_over.set()
            for router in routers:
                router.wake()
        for thread in threads:
            thread.result(10.0)


@pytest.mark.parametrize(("topology", "seed"), [("mesh", 0), ("tree:2", 1)])
def test_a_learner_cut_off_for_8_s_takes_no_item_of_another(clock, topology, seed) -> None:
    rng, count = random.Random(seed), 0
    with Cluster(3, topology, clock=clock) as cluster, taking(*cluster.routers[1:]) as taken:
        hub, *learners = cluster.routers
        for router in learners:
            router.register("echo", lambda value: value)

        def wait_for(count: int) -> None:
            wait_until(lambda: len(taken) >= count, f"of {count} items {len(taken)} were taken")

        for _ in range(15):
            wait_until(lambda: hub.peers == (1, 2), "a learner has not come back")
            cut_off, other = rng.sample([1, 2], 2)
            cluster.network.hold(cut_off, 0)  # no answer comes back any more
            for _ in range(4):
                assert hub.send("work", count, to=["node.1", "node.2"], timeout=10.0)
                count += 1
            wait_for(count)
            cluster.network.cut(0, cut_off)
            for _ in range(CUT_S):
                clock.advance(1.0)
                assert hub.call(other, "echo", count) == count  # or they would miss each other too
            cluster.network.heal()
            wait_for(count)
        assert Counter(value for value, _ in taken) == Counter(range(count))
        assert len({item_id for _, item_id in taken}) == count
