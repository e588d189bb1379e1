"""Each stream item is taken once, also when learners are cut off for a while."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import pytest

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.messaging.streams import ItemId
from ding_lite.testing import Cluster, ManualClock
from tests.parallel.proxy import Proxy
from tests.parallel.tcp import hub_spec, leaf_spec
from tests.parallel.test_clusters import wait_until

CUT_S = 8
"""Seconds of a cut: more than the peer timeout."""


class Takers:
    """Take items on a thread of each node, and wait for them."""

    def __init__(self, *routers: NodeRouter, pause_s: float = 0.0) -> None:
        self.taken: list[tuple[int, ItemId]] = []
        self._pause_s = pause_s
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
            SYSTEM_CLOCK.sleep(self._pause_s)

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
def taking(*routers: NodeRouter, pause_s: float = 0.0) -> Iterator[Takers]:
    takers = Takers(*routers, pause_s=pause_s)
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


@pytest.mark.slow
@pytest.mark.deadline(300)
def test_a_learner_behind_a_dead_wire_for_8_s_takes_no_item_of_another() -> None:
    with ExitStack() as stack:
        hub = stack.enter_context(closing(NodeRouter(hub_spec(3))))
        wires = [stack.enter_context(Proxy(str(hub.address))) for _ in range(2)]
        learners = [
            stack.enter_context(closing(NodeRouter(leaf_spec(node, wire.address, 3))))
            for node, wire in enumerate(wires, start=1)
        ]
        for router in (hub, *learners):
            router.wait_ready(10.0)
        takers = stack.enter_context(taking(*learners, pause_s=0.005))
        count, rng = 0, random.Random(0)
        for _ in range(8):
            wire = rng.choice(wires)
            for end_at in (SYSTEM_CLOCK.now() + s for s in (0.5, CUT_S)):
                while SYSTEM_CLOCK.now() < end_at:
                    assert hub.send("work", count, to=["node.1", "node.2"], timeout=10.0)
                    count += 1
                wire.blackhole()
            wire.heal()
        takers.wait(count)
        check(takers, count)
