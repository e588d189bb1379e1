"""Several runs of each node, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from ding_lite.distributed import World
from ding_lite.runtime import Router, current_router, use_router
from ding_lite.runtime.task import Task
from ding_lite.testing import Cluster
from tests.nodes import delivered
from tests.parallel.tcp import Recorder

KINDS = pytest.mark.parametrize("kind", ["a task each", "one task", "one task in a with block"])


@contextmanager
def runs(kind: str) -> Iterator[Callable[[int | None], int]]:
    """Give a function that runs a task for so many steps, and returns how many it has made."""
    tasks: list[Task] = []
    steps: list[int] = []

    with ExitStack() as blocks:

        def run(max_step: int | None) -> int:
            if not tasks or kind == "a task each":
                tasks.append(Task().use(lambda ctx: steps.append(ctx.total_step)))
                if kind == "one task in a with block":
                    blocks.enter_context(tasks[-1])
            steps.clear()
            tasks[-1].run(max_step)
            return len(steps)

        yield run


@KINDS
@pytest.mark.parametrize(("topology", "is_together"), [("star", True), ("mesh", False)])
def test_the_end_of_a_run_does_not_end_the_next_one(is_together, topology, kind) -> None:
    def main() -> list[int]:
        world, made = World.current(), []
        with runs(kind) as run:
            for _ in range(3):
                made.append(run(5 if world.node_id == 0 else None))
                if is_together:
                    world.group("node.*").barrier()
        return made

    with Cluster(3, topology) as cluster:
        assert cluster.run(main)[0] == [5, 5, 5]


@KINDS
def test_a_run_that_another_node_has_ended_before_it_begins_makes_no_steps(kind: str) -> None:
    has_ended = threading.Event()

    def main() -> int:
        world, router = World.current(), current_router()
        if world.node_id == 0:
            router.register("end", has_ended.set)
        with runs(kind) as run:
            run(None if world.node_id == 0 else 3)
            world.group("node.*").barrier()
            if world.node_id == 0:
                has_ended.wait()
            made = run(1_000)
            if world.node_id == 1:
                router.call(0, "end")  # arrives after the end of the job
            return made

    with Cluster(2) as cluster:
        made, _ = cluster.run(main)
        assert made <= (kind == "a task each")  # a new task begins its first step


def test_runs_that_another_node_has_ended_during_a_slow_step_of_the_first_end_at_once() -> None:
    has_ended = threading.Event()

    def main() -> list[int]:
        router = current_router()
        if router.node_id == 1:
            for _ in range(3):
                Task().use(lambda ctx: None).run(1)
            router.call(0, "end")
            return []
        router.register("end", has_ended.set)
        Task().use(lambda ctx: has_ended.wait()).run()
        with runs("a task each") as run:
            return [run(1_000) for _ in range(3)]

    with Cluster(2) as cluster:
        second, third, own = cluster.run(main)[0]
    assert max(second, third) <= 1
    assert own == 1_000


def test_the_late_end_of_a_slower_node_does_not_end_the_next_run() -> None:
    has_begun = threading.Event()

    def main() -> int:
        router = current_router()
        if router.node_id == 1:
            Task().use(lambda ctx: has_begun.wait()).run()
            router.call(0, "end")  # arrives after the end of the run
            return 0
        has_ended, steps = threading.Event(), list[object]()
        router.register("end", has_ended.set)
        Task().use(lambda ctx: None).run(1)
        has_begun.set()
        Task().use(lambda ctx: steps.append(has_ended.wait())).run(10)
        return len(steps)

    with Cluster(2) as cluster:
        assert cluster.run(main)[0] == 10


def test_a_restarted_node_gets_the_end_of_the_newest_run_and_no_others() -> None:
    with Cluster(2) as cluster:
        with use_router(cluster.routers[0]):
            for _ in range(3):
                Task().use(lambda ctx: None).run(1)
        delivered(cluster.routers[0])
        recorder = Recorder(cluster.restart(1))
        cluster.routers[1].wait_ready()
        cluster.routers[0].emit("last")
        recorder.wait(lambda: (0, "last", ()) in recorder.events)
        assert [event for _, event, _ in recorder.events] == ["finish", "last"]


def test_a_restarted_node_that_makes_an_ended_run_again_does_not_end_the_present_one() -> None:
    has_made_again = threading.Event()

    def run(router: Router, max_step: int | None, wait: Callable[[], object] = bool) -> int:
        steps: list[object] = []
        with use_router(router):
            Task().use(lambda ctx: steps.append(wait())).run(max_step)
        return len(steps)

    with Cluster(2) as cluster, ThreadPoolExecutor(2) as threads:
        for first in [threads.submit(run, router, 1) for router in cluster.routers]:
            first.result()
        restarted = cluster.restart(1)
        restarted.wait_ready()
        cluster.routers[0].register("made again", has_made_again.set)
        second = threads.submit(run, cluster.routers[0], 50, has_made_again.wait)
        run(restarted, None)
        restarted.call(0, "made again")  # arrives after the end of that run
        assert second.result() == 50
