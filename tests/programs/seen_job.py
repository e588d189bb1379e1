"""A learner and a collector, to be seen by `ding-lite top`."""

import os
from contextlib import suppress

from ding_lite import Parallel, Task
from ding_lite.errors import DeadlineExceeded
from tests.programs.given import say


def main():
    with Task() as task:
        node = task.router.node_id

        def collect(ctx):
            ctx.env_step = 8 * (ctx.total_step + 1)
            ctx.keep("env_step")
            task.emit("collected", ctx.total_step)
            task.wait_for("more", timeout=0.01 if ctx.total_step < 50 else None)

        def learn(ctx):
            if ctx.total_step == 0:
                say("up", node, os.getpid())
            task.wait_for("collected")

        if node == 1:
            say("up", node, os.getpid())
        task.use(learn, filter_labels="learner").use(patiently(collect), filter_labels="collector")
        task.run()


def patiently(fn):
    def _patiently(ctx):
        with suppress(DeadlineExceeded):
            fn(ctx)

    return _patiently


if __name__ == "__main__":
    by_hand = "DING_LITE_NODE_ID" in os.environ
    roles = None if by_hand else ["learner", "collector"]
    Parallel.runner(2, "star", roles=roles, auto_recover=not by_hand)(main)
