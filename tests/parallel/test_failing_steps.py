"""A failing async step on one of two nodes, while another middleware of it waits."""

from __future__ import annotations

import threading
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
from tests.runtime import test_failing_steps as alone


def _send(task: Task, ctx: Context) -> object:
    while task.send("work", 1, to="node.1", in_flight=1, timeout=None):
        pass
    return None


def _call(task: Task, ctx: Context) -> object:
    return task.router.call(1, "slow", timeout=None)


def _wait_for_replay(task: Task, ctx: Context) -> object:
    group, spec = World.current().group([1]), make_envs("CartPole-v1", 1).spec
    try:
        return mw.wait_for(ShardedReplay(group, spec, shard_capacity=100), size=10)(ctx)
    except StepCancelled:  # while it asks the shard, and not between two questions
        return None


@pytest.mark.parametrize(
    ("waiting", "outcome"), [(_wait_for_replay, None), (_send, None), (_call, StepCancelled)]
)
def test_the_error_leaves_run_and_the_other_node_continues(waiting, outcome) -> None:
    has_failed = threading.Event()

    def main() -> object:
        if current_router().node_id == 0:
            _, outcomes = alone.run_beside(waiting)
            has_failed.set()
            return outcomes
        with Task() as task:
            task.router.register("slow", Future)
            task.use(lambda ctx: has_failed.wait(10.0) and None)
            task.run(max_step=3)
            return task.ctx.total_step

    with Cluster(2) as cluster:
        assert cluster.run(main) == [[outcome], 2]
