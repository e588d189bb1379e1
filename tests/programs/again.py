"""Node 1 fails in one way or another before torchrun has restarted all."""

import os
import signal
import sys

from ding_lite import Parallel, Task
from tests.programs.given import say


def main():
    num_restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    arrived = set()
    with Task() as task:
        node = task.router.node_id

        def play(ctx):
            if num_restarts == 0 and node == 1:
                fail()
            if num_restarts == 1:
                task.emit("played", node)
            task.wait_for("the end that never comes")

        def hear(other):
            arrived.add(other)
            if len(arrived) == 2 and node == 0:
                task.finish = True

        task.on("played", hear)
        task.use(play).run()
    say(node, "after restarts:", num_restarts)


def fail():
    if "raise" in sys.argv:
        raise ZeroDivisionError
    os.kill(os.getpid(), signal.SIGTERM if "terminate" in sys.argv else signal.SIGKILL)


if __name__ == "__main__":
    Parallel.runner(3, "mesh")(main)
