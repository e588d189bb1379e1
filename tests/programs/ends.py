"""Nodes that get SIGTERM in no step or in their last one, or raise or exit while others wait."""

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import ding_lite.log
from ding_lite import Parallel, Task
from ding_lite.distributed import World
from ding_lite.errors import DeadlineExceeded
from tests.programs.given import given, say


def in_no_step():
    say("up", Parallel().node_id, os.getpid())
    threading.Event().wait()


def in_the_last_step():
    with Task() as task:

        def end(ctx):
            os.kill(os.getpid(), signal.SIGTERM)
            ctx.finish = True

        task.use(end, "node.1").use(lambda ctx: task.wait_for("nothing"), "node.0").run()
    return "ended"


def raises_once():
    received = []
    with Task() as task:
        task.on("waiting", lambda: received.append(True))

        def tell(ctx):
            if Path("raised").exists():
                ctx.number = 1
            elif received:
                Path("raised").touch()
                raise ZeroDivisionError

        def hear(ctx):
            task.emit("waiting")
            with suppress(DeadlineExceeded):
                newer = {"number": 0}
                ctx.finish = task.wait_parallel_ctx(newer, timeout=0.01).number == 1

        task.use(tell, "node.1").use(hear, "node.0").run()
    return "ended"


def barrier():
    world = World.current()
    if world.node_id == 2 and not Path("failed").exists():
        Path("failed").touch()
        raise ZeroDivisionError("on the way to the barrier")
    group = world.group([0, 1, 2])
    group.barrier(timeout=15.0)
    return group.all_gather(world.node_id)


def exits_once():
    seen = []
    with Task() as task:

        def exit_once(ctx):
            if not Path("exited").exists():
                Path("exited").touch()
                sys.exit(3)
            ctx.finish = True

        task.on("node_lost", lambda peer: seen.append(f"lost {peer}"))
        task.on("node_joined", lambda peer: seen.append(f"joined {peer}"))
        task.use(exit_once, "node.1").use(lambda ctx: task.wait_for("nothing"), "node.0").run()
    return seen


if __name__ == "__main__":
    ding_lite.log.configure()
    num_nodes = 3 if given.main == "barrier" else 2
    print(Parallel.runner(num_nodes, "star", auto_recover=given.recover)(globals()[given.main]))
