"""A node emits large events while its listener is stopped."""

import os
import pathlib

import numpy as np

from ding_lite import Parallel, Task
from tests.programs.given import given, say

NUM_EVENTS = 200
MEGABYTE = 2**20


def peak():
    status = pathlib.Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) / 1024


def main():
    node, heard = Parallel().node_id, []
    with Task() as task:

        def emit(ctx):
            task.router.on("node_lost", lambda peer: say("lost", node))
            for number in range(NUM_EVENTS):
                task.emit("n", number, np.full(MEGABYTE, number % 256, np.uint8), only_remote=True)
                if number in (50, NUM_EVENTS - 1):
                    say("emitted", number)
            task.wait_for("nothing")

        def hear(number, data):
            heard.append(number if (data == number % 256).all() else -1)
            task.finish = len(heard) == NUM_EVENTS

        task.on("n", hear)
        task.on("node_lost", lambda peer: None)
        task.use(emit, "node.0").use(lambda ctx: task.wait_for("nothing"), "node.1")
        say("up", node, os.getpid())
        if node == 0:
            pathlib.Path("go").read_text()
        before = peak()
        task.run()
    return peak() - before if node == 0 else heard == [*range(NUM_EVENTS)]


if __name__ == "__main__":
    print(Parallel.runner(2, protocol=given.protocol)(main))
