"""Nodes that count, save their counts when they end, and go on from there."""

import os
from pathlib import Path

import numpy as np

from ding_lite import Parallel, Task, middleware as mw
from tests.programs.given import given, pause, say


class Counter:
    def __init__(self):
        self.values = np.zeros(3)

    def state_dict(self):
        return {"values": self.values.copy()}

    def load_state_dict(self, state):
        self.values = state["values"]


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
            pause(task, 0.01)
            ctx.finish = node == 0 and Path("enough").exists()

        task.on("node_lost", lambda peer: say("fate", node, "lost", peer))
        task.on("node_joined", lambda peer: say("fate", node, "joined", peer))
        task.use(count)
        task.use(mw.checkpoint({"counter": counter}, folder, every=1_000_000))
        task.run()
    say("main has ended on", node)
    return begun


if __name__ == "__main__":
    print(Parallel.runner(2, auto_recover=getattr(given, "recover", False))(main))
