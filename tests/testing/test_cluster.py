"""A job of several nodes in one process."""

from __future__ import annotations

import os
import threading

import pytest

from ding_lite.clock import Deadline
from ding_lite.errors import ConfigError, DeadlineExceeded, PeerLost
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime import Task, current_router
from ding_lite.testing import Cluster, ManualClock


def test_a_program_runs_on_all_nodes_with_the_labels_of_each() -> None:
    def main(greeting: str, *, mark: str) -> tuple[str, set[str], tuple[int, ...]]:
        router = current_router()
        return f"{greeting}{mark}", set(router.labels), router.peers

    with Cluster(3, "star", roles=["learner", "collector", "collector"], labels="gpu") as cluster:
        results = cluster.run(main, "hello", mark="!")
    assert [text for text, _, _ in results] == ["hello!"] * 3
    assert results[2][1] == {"collector", "collector.1", "distributed", "gpu", "node.2"}
    assert results[0][2] == (1, 2)


def test_one_node_is_a_job_by_itself_and_a_cluster_runs_one_program() -> None:
    with Cluster(1) as cluster:
        with pytest.raises(ConfigError, match="no program yet"):
            cluster.results()
        assert cluster.run(lambda: sorted(current_router().labels)) == [["node.0", "standalone"]]
        with pytest.raises(ConfigError, match="has a program already"):
            cluster.start(lambda: None)
        with pytest.raises(ConfigError, match="a thread cannot be killed"):
            cluster.restart(0)


def test_an_error_of_one_node_ends_the_tasks_of_the_others_and_says_where() -> None:
    has_begun = threading.Barrier(3)

    def main() -> None:
        has_begun.wait(10.0)
        if current_router().node_id == 1:
            raise ZeroDivisionError("by zero")
        with Task() as task:
            task.use(lambda ctx: task.wait_for("the end"))
            task.run()

    with Cluster(3) as cluster, pytest.raises(ZeroDivisionError) as caught:
        cluster.run(main, timeout=10.0)
    assert caught.value.__notes__ == ["in `main` of node 1"]


def test_errors_of_several_nodes_are_a_group() -> None:
    has_begun = threading.Barrier(2)

    def main() -> None:
        has_begun.wait(10.0)
        raise KeyError(current_router().node_id)

    with Cluster(2) as cluster, pytest.raises(BaseExceptionGroup) as caught:
        cluster.run(main, timeout=10.0)
    assert [error.args for error in caught.value.exceptions] == [(0,), (1,)]


def test_a_program_that_does_not_end_is_named() -> None:
    may_end = threading.Event()

    def main() -> None:
        if current_router().node_id == 1:
            may_end.wait(10.0)

    with Cluster(2, "alone") as cluster:
        with pytest.raises(DeadlineExceeded, match=r"within 0.05 s on node 1\. Does it wait"):
            cluster.run(main, timeout=0.05)
        may_end.set()
        assert cluster.results(timeout=10.0) == [None, None]


def test_a_node_may_vanish_and_come_back_as_a_later_incarnation() -> None:
    fates: list[tuple[str, int]] = []
    changed = threading.Condition()

    def note(event: str, node_id: int) -> None:
        with changed:
            fates.append((event, node_id))
            changed.notify_all()

    with Cluster(2) as cluster:
        for event in ("node_lost", "node_joined"):
            cluster.routers[0].on(event, lambda node_id, event=event: note(event, node_id))
        old = cluster.routers[1]
        again = cluster.restart(1)
        assert again is cluster.routers[1] is not old
        again.wait_ready(10.0)
        with changed:
            assert changed.wait_for(lambda: len(fates) == 2, 10.0)
        again.register("double", lambda number: 2 * number)
        assert cluster.routers[0].call(1, "double", 4) == 8
    assert fates == [("node_lost", 1), ("node_joined", 1)]


def test_with_a_manual_clock_a_peer_is_lost_only_as_time_is_advanced(clock: ManualClock) -> None:
    lost = threading.Event()
    with Cluster(2, clock=clock) as cluster:
        cluster.routers[0].on("node_lost", lambda node_id: lost.set())
        cluster.network.hold(1, 0)
        clock.advance(2.0)
        assert cluster.routers[0].peers == (1,)
        clock.advance(2.0)
        assert lost.wait(10.0)


def test_wrong_arguments_are_refused_before_anything_starts() -> None:
    for num_nodes in (0, 1.5):
        with pytest.raises(ConfigError, match=rf"`num_nodes` is {num_nodes}; it must be a whole"):
            Cluster(num_nodes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="1 entries for 2 nodes"):
        Cluster(2, roles=["learner"])
    with pytest.raises(ConfigError, match="topology"):
        Cluster(2, "ring")


def test_closing_twice_and_a_cut_network_do_no_harm() -> None:
    cluster = Cluster(3)
    cluster.network.cut(0, 1)
    cluster.network.hold(1, 2)
    cluster.close()
    cluster.close()
    assert cluster.routers == ()


def test_what_a_node_sent_before_it_left_is_there_and_nothing_newer_is_waited_for() -> None:
    has_left = threading.Event()

    def main() -> int | None:
        router = current_router()
        if router.node_id == 0:
            router.publish_ctx({"number": 3})
            return None
        assert has_left.wait(10.0)
        with Task() as task:
            assert task.wait_parallel_ctx() is task.parallel_ctx
            with pytest.raises(PeerLost, match="all of them have left"):
                task.wait_parallel_ctx(newer_than={"number": 3})
        return int(task.parallel_ctx.number)

    with Cluster(2) as cluster:
        leaving = threading.Thread(target=_when_gone, args=(cluster.routers[1], has_left))
        leaving.start()
        assert cluster.run(main, timeout=15.0) == [None, 3]
        leaving.join()


def _when_gone(router: NodeRouter, has_left: threading.Event) -> None:
    """Wait until the router has no peers; a program is not notified of a good-bye."""
    deadline = Deadline.after(10.0)
    while router.has_audience and not deadline.expired:
        os.sched_yield()
    has_left.set()


def test_closing_ends_also_where_time_stands_still_and_a_peer_is_lost(clock: ManualClock) -> None:
    with Cluster(2, clock=clock) as cluster:
        cluster.routers[1].close(good_bye=False)
        cluster.routers[0].emit("never taken")
    assert clock.now() > 0.0
