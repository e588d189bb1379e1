"""Listeners that raise, and a node that fails on its way to a barrier."""

from pathlib import Path

import ding_lite.log
from ding_lite import Parallel, Task
from ding_lite.distributed import World
from tests.programs.given import given


def boom(*args):
    raise ZeroDivisionError("in a listener")


def emit_to_a_bad_listener():
    run_with(lambda task: task.on("bad", boom))


def emit_to_a_bad_listener_of_the_router():
    run_with(lambda task: task.router.on("bad", boom))


def run_with(listen):
    ding_lite.log.configure()
    with Task() as task:

        def end():
            task.finish = True

        if task.router.node_id == 0:
            task.on("ready", lambda: task.emit("bad", only_remote=True).emit("good"))
        if task.router.node_id == 2:
            listen(task)
            task.on("good", end)
            task.emit("ready")
        task.use(lambda ctx: task.wait_for("nothing")).run()


def meet_without_one():
    node = World.current()
    if node.node_id == 2 and not Path("failed").exists():
        Path("failed").touch()
        raise ZeroDivisionError("on the way to the barrier")
    group = node.group([0, 1, 2])
    group.barrier(timeout=15.0)
    return group.all_gather(node.node_id)


if __name__ == "__main__":
    print(Parallel.runner(3, "star", auto_recover=given.recover)(globals()[given.main]))
