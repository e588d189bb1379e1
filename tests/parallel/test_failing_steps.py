"""A failing async step on one of two nodes, while another middleware of it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from ding_lite import middleware as mw
from ding_lite.distributed import ShardedReplay
from ding_lite.errors import StepCancelled
from ding_lite.parallel.router.group import World
from ding_lite.rl import make_envs
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import current_router
from ding_lite.runtime.task import Task
from ding_lite.testing import Cluster


class Broken(Exception):
    """The error of the other middleware."""


def _wait_for(task: Task, ctx: Context) -> object:
    return task.wait_for("never")


def _wait_parallel_ctx(task: Task, ctx: Context) -> object:
    return task.wait_parallel_ctx(newer_than={"never": 1})


def _receive(task: Task, ctx: Context) -> object:
    return task.receive("never", timeout=None)


def _send(task: Task, ctx: Context) -> object:
    while task.send("work", 1, to="node.1", in_flight=1, timeout=None):
        pass
    return None


def _call(task: Task, ctx: Context) -> object:
    return task.router.call(1, "slow", timeout=None)


def _barrier(task: Task, ctx: Context) -> object:
    return World.current().group([0, 1]).barrier(timeout=None)


def _wait_for_replay(task: Task, ctx: Context) -> object:
    group, spec = World.current().group([1]), make_envs("CartPole-v1", 1).spec
    try:
        return mw.wait_for(ShardedReplay(group, spec, shard_capacity=100), size=10)(ctx)
    except StepCancelled:  # while it asks the shard, and not between two questions
        return None


CASES: list[tuple[Callable[[Task, Context], object], object]] = [
    (_wait_for, None),
    (_wait_parallel_ctx, None),
    (_wait_for_replay, None),
    (_receive, None),
    (_send, None),
    (_call, StepCancelled),
    (_barrier, StepCancelled),
]


@pytest.mark.parametrize(("waiting", "outcome"), CASES)
def test_the_error_leaves_run_and_the_other_node_continues(
    waiting: Callable[[Task, Context], object], outcome: object
) -> None:
    outcomes: list[object] = []
    has_failed = threading.Event()

    def main() -> str:
        return fail() if current_router().node_id == 0 else go_on()

    def fail() -> str:
        begins = threading.Event()

        def wait(ctx: Context) -> None:
            begins.set()
            try:
                outcomes.append(waiting(task, ctx))
            except BaseException as error:
                outcomes.append(type(error))
                raise

        def bad(ctx: Context) -> None:
            begins.wait(10.0)
            threading.Event().wait(0.02)  # so that it is most likely in its wait
            raise Broken

        with Task(async_mode=True) as task:
            task.use(wait).use(bad)
            with pytest.raises(Broken):
                task.run(max_step=1)
        has_failed.set()
        return "failed"

    def go_on() -> str:
        with Task() as task:
            task.router.register("slow", Future)
            task.use(lambda ctx: has_failed.wait(10.0) and None)
            task.run(max_step=3)
            return f"{task.ctx.total_step}"

    with Cluster(2) as cluster:
        assert cluster.run(main) == ["failed", "2"]
    assert outcomes == [outcome]
