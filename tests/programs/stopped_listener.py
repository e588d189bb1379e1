"""Node 0 emits events while the last node, in a tree behind a hub, is stopped."""

import os
import pathlib

import numpy as np

from ding_lite import Parallel, Task
from tests.programs.given import given, memory, say

NUM_EVENTS, SIZE, STOPPED = given.num_events, given.size, given.num_nodes - 1


def main():
    node, received, used = Parallel().node_id, [], []
    with Task() as task:

        def emit(ctx):
            wait(ctx)
            pathlib.Path("go").read_text()
            for number in range(NUM_EVENTS):
                data = np.full(SIZE, number % 256, np.uint8)
                task.emit("n", number, data, only_remote=True)
                if number in (50, 99_999, NUM_EVENTS - 1):
                    say("emitted", number)
            task.wait_for("nothing")

        def wait(ctx):
            used.append(memory("VmHWM"))
            say("up", node, os.getpid())
            if node != 0:
                task.wait_for("nothing")

        def hear(number, data):
            received.append(number if (data == number % 256).all() else -1)
            task.finish = len(received) == NUM_EVENTS

        task.on("n", hear if node == STOPPED else lambda number, data: received.append(number))
        task.use(emit, "node.0").use(wait, "node.[!0]")
        task.router.on("node_lost", lambda peer: say("lost", peer))
        task.run()
    return round((memory("VmHWM") - used[0]) / 2**20), received == [*range(NUM_EVENTS)]


if __name__ == "__main__":
    print(Parallel.runner(given.num_nodes, given.topology, protocol=given.protocol)(main))
