"""Nodes that count, save their counts when they end, and go on from there.

If the disk of node 1 is to be full, they save after each step, until it is.
"""

import os
import resource
from pathlib import Path

import numpy as np

from ding_lite import Parallel, Task, middleware as mw
from tests.programs.given import given, pause, say


class Counter:
    def __init__(self):
        self.values = np.zeros(20_000)

    def state_dict(self):
        return {"values": self.values.copy()}

    def load_state_dict(self, state):
        self.values = state["values"]


FILLS_DISK = getattr(given, "fills_disk", False)


def main():
    node, counter = Parallel().node_id, Counter()
    folder = Path(f"checkpoint-{node}")
    if folder.exists():
        mw.resume({"counter": counter}, folder)
    begun = int(counter.values[0])
    with Task() as task:

        def count(ctx):
            counter.values += 1
            if ctx.total_step == 5:
                say("up", node, os.getpid(), begun)
                if FILLS_DISK and node == 1:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
            pause(task, 0.01)
            ctx.finish = node == 0 and Path("enough").exists()

        task.on("node_lost", lambda peer: say("fate", node, "lost", peer))
        task.on("node_joined", lambda peer: say("fate", node, "joined", peer))
        task.use(count)
        every = 1 if FILLS_DISK else 1_000_000
        task.use(mw.checkpoint({"counter": counter}, folder, every=every))
        task.run()
    say("main has ended on", node)
    return begun


if __name__ == "__main__":
    print(Parallel.runner(2, auto_recover=getattr(given, "recover", False))(main))
