"""A middleware raises beside one that waits at a barrier."""

import os
import threading
from pathlib import Path

from ding_lite import Parallel, Task
from ding_lite.distributed import World
from tests.programs.given import given

RECOVERS = given.recover


def main():
    with Task(async_mode=True) as task:
        node, begins = task.router.node_id, threading.Event()

        def wait(ctx):
            begins.set()
            if not RECOVERS:
                World.current().group([0, 1]).barrier(timeout=None)
            elif node == 0:
                task.wait_for("never")

        def bad(ctx):
            if node == 0:
                begins.wait()
                if RECOVERS and os.path.exists("failed"):
                    task.emit("failed before")
                    ctx.finish = True
                    return
                Path("failed").touch()
                raise ZeroDivisionError("beside a wait")
            if RECOVERS:
                task.wait_for("failed before")

        task.use(wait).use(bad).run()
    return os.path.exists("failed")


if __name__ == "__main__":
    print(Parallel.runner(2, auto_recover=RECOVERS)(main))
