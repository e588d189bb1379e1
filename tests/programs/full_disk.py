"""A node saves a checkpoint in each step until its disk is full."""

import resource

from ding_lite import Parallel, Task


class Counter:
    def __init__(self):
        import numpy as np

        self.values = np.zeros(20_000)

    def state_dict(self):
        return {"values": self.values.copy()}

    def load_state_dict(self, state):
        self.values = state["values"]


def main():
    with Task() as task:
        if task.router.node_id == 1:
            from ding_lite import middleware as mw

            counter = Counter()
            task.use(mw.checkpoint({"counter": counter}, "checkpoint", every=1))

        def count(ctx):
            counter.values += 1
            if ctx.total_step == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # the disk is full

        def wait(ctx):
            task.wait_for("nothing")

        task.use(count, "node.1").use(wait, "node.0").run()


if __name__ == "__main__":
    Parallel.runner(2)(main)
