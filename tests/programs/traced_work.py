"""Nodes that say when they are in the middle of their work, which is traced."""

import os

from ding_lite import Parallel, Task
from ding_lite.runtime import Trace
from tests.programs.given import say


def main():
    with Task() as task:

        def work(ctx):
            say("up", task.router.node_id, os.getpid())
            task.wait_for("the end")

        task.use_step_wrapper(Trace("trace.json"))
        task.use(lambda ctx: None)
        task.use(work).run()


if __name__ == "__main__":
    Parallel.runner(2, auto_recover=True)(main)
