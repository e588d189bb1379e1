"""Groups of nodes: barrier, all_gather, broadcast."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from ding_lite.distributed import World
from ding_lite.errors import CodecError, ConfigError, DeadlineExceeded, PeerLost, TransportError
from ding_lite.parallel.router.calls import NUM_WORKERS
from ding_lite.runtime import current_router
from ding_lite.testing import Cluster
from tests.parallel.tcp import wait_until


def on_nodes(main: Callable[[World], object], *, roles: list[str]) -> list[Any]:
    """Run `main(world)` on a node for each role; raise the first exception."""
    with Cluster(len(roles), roles=roles) as cluster:
        try:
            return cluster.run(lambda: main(World.current()))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None


ROLES = ["learner", "learner", "collector", "collector"]


@pytest.fixture
def world() -> Iterator[World]:
    """Return the world of the last of four nodes."""
    with Cluster(4, roles=ROLES) as cluster:
        yield World(cluster.routers[3])


def test_all_gather_returns_all_values_by_rank_and_broadcast_that_of_one_member() -> None:
    def main(world: World) -> object:
        sent = world.group(range(world.num_nodes)).broadcast(f"from {world.node_id}", src=2)
        group = world.group("collector")
        if not group.is_member:
            return sent
        return sent, [group.all_gather((group.rank, world.node_id, n)) for n in range(3)]

    both = "from 2", [[(0, 2, n), (1, 3, n)] for n in range(3)]
    assert on_nodes(main, roles=ROLES) == ["from 2", "from 2", both, both]


@pytest.mark.parametrize("other", ["barrier", "broadcast"])
def test_members_that_call_different_operations_are_told_both(other: str) -> None:
    def main(world: World) -> str:
        group = world.group([0, 1])
        kind = ("all_gather", other)[world.node_id]
        arguments = () if kind == "barrier" else (1,)
        with pytest.raises(ConfigError, match="must call the same operations") as raised:
            getattr(group, kind)(*arguments)
        assert group.all_gather(world.node_id) == [0, 1]
        return str(raised.value)

    for text in on_nodes(main, roles=["learner", "collector"]):
        assert "all_gather" in text
        assert other in text


def test_a_barrier_blocks_until_all_members_have_called() -> None:
    arrived: list[int] = []

    def main(world: World) -> int:
        arrived.append(world.node_id)
        world.group("node.*").barrier()
        return len(arrived)

    assert on_nodes(main, roles=ROLES) == [4] * 4


def test_slow_handlers_do_not_delay_a_barrier() -> None:
    over = threading.Event()

    def main(world: World) -> None:
        router, group = current_router(), world.group("node.*")
        router.register("slow", lambda: over.wait(15.0))
        group.barrier(timeout=10.0)
        waiting = [router.ask(peer, "slow") for peer in router.peers for _ in range(NUM_WORKERS)]
        try:
            group.barrier(timeout=5.0)
            assert not any(answer.done() for answer in waiting)
            group.barrier(timeout=5.0)
        finally:
            over.set()

    on_nodes(main, roles=["learner", "collector", "collector"])


def test_a_value_that_cannot_be_sent_may_be_replaced_by_another_one() -> None:
    def main(world: World) -> list[object]:
        group = world.group("node.*")
        if group.rank < 2:
            with pytest.raises(CodecError, match="a lock"):
                group.all_gather(threading.Lock(), timeout=10.0)
        return group.all_gather(group.rank, timeout=10.0)

    assert on_nodes(main, roles=ROLES) == [[0, 1, 2, 3]] * 4


def test_an_operation_that_is_refused_on_the_reading_thread_may_be_called_elsewhere() -> None:
    def main(world: World) -> list[object]:
        router, group, refused = current_router(), world.group("node.*"), threading.Event()

        def on_answer(_: object) -> None:
            with pytest.raises(TransportError, match="would wait for another node on the thread"):
                group.barrier()
            refused.set()

        router.register("here", lambda: None)
        if group.rank == 1:
            router.ask(0, "here").add_done_callback(on_answer)
            assert refused.wait(10.0)
        return group.all_gather(group.rank, timeout=5.0)

    assert on_nodes(main, roles=ROLES[:2]) == [[0, 1]] * 2


def test_each_member_gets_copies_of_the_values_that_were_given() -> None:
    def main(world: World) -> None:
        group = world.group("node.*")
        for n in range(20):
            value = np.full(100_000, n)
            found = group.all_gather(value)
            value.fill(-1)
            assert all((each == n).all() for each in found)
            for each in found[1:]:
                found[0] += each

    on_nodes(main, roles=ROLES)
    on_nodes(main, roles=ROLES[:1])


def test_a_member_that_has_left_is_an_error_at_once() -> None:
    def main(world: World) -> None:
        group = world.group("collector")
        if world.node_id == 2:
            group.barrier(timeout=None)
        else:
            assert world.node_id != 3

    with pytest.raises(PeerLost, match=r"Node 3 has left the job, so group 2,3, operation 1"):
        on_nodes(main, roles=ROLES)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_restarted_member_goes_on_with_the_operation_that_it_has_begun(is_first: bool) -> None:
    with Cluster(3) as cluster, ThreadPoolExecutor(3) as pool:

        def gather(node: int, value: str) -> Future[list[str]]:
            group = World(cluster.routers[node]).group([0, 1, 2])
            return pool.submit(group.all_gather, value, timeout=10.0)

        former = gather(2, "former")
        wait_until(lambda: len(cluster.routers[0].collectives._open) == 1, "the former value")
        cluster.restart(2).wait_ready(10.0)
        assert isinstance(former.exception(10.0), PeerLost)
        order = (2, 0, 1) if is_first else (0, 1, 2)
        for answer in [gather(node, f"of {node}") for node in order]:
            assert answer.result() == ["of 0", "of 1", "of 2"]


def test_a_missing_member_raises_deadline_exceeded() -> None:
    def main(world: World) -> None:
        try:
            if world.node_id == 0:
                world.group("learner").barrier(timeout=0.05)
        finally:
            world.group("node.*").barrier()

    with pytest.raises(DeadlineExceeded, match=r"group 0,1, operation 1 have called within 0.05 s"):
        on_nodes(main, roles=ROLES)


def test_members_are_named_by_labels_or_ids(world: World) -> None:
    named: list[Any] = ["learner", ["learner.1", "collector.*"], [3, 0], 2, np.arange(3)]
    expected = [(0, 1), (1, 2, 3), (0, 3), (2,), (0, 1, 2)]
    assert [world.group(members).members for members in named] == expected
    for node in (3, cast(Any, np.int64(3))):
        assert world.labels_of(node) >= {"collector.1"}


def test_a_single_node_is_a_group_of_one() -> None:
    world = World.current()
    group = world.group("node.*")
    group.barrier()
    assert (world.num_nodes, world.rank, group.members, group.rank) == (1, 0, (0,), 0)
    assert (group.all_gather(3), group.broadcast(4)) == ([3], 4)


def test_seeds_differ_by_node_and_not_by_run() -> None:
    seeds = on_nodes(lambda world: world.node_seed, roles=ROLES)
    assert len(set(seeds)) == 4
    assert seeds == on_nodes(lambda world: world.node_seed, roles=ROLES)


def test_impossible_groups_are_refused_with_known_nodes_and_labels(world: World) -> None:
    impossible: list[Any] = ["evaluator", [7], [], ["learner", 9], [True], [0.0], [[0]], [-1]]
    for members in impossible:
        message = r"No group can be made of .*nodes 0 to 3 .*collector"
        with pytest.raises(ConfigError, match=message):
            world.group(members)


def test_ranks_outside_of_the_group_are_refused(world: World) -> None:
    with pytest.raises(ConfigError, match=r"Node 3 is no member of the group \[0, 1\]"):
        _ = world.group("learner").rank
    sources: list[Any] = [4, "0", 1.0]
    for src in sources:
        with pytest.raises(ConfigError, match=rf"`src` is {src!r}.*ranks 0 to 3"):
            world.group("node.*").broadcast(1, src=src)
