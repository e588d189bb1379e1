"""Nodes wait within a step until the job ends."""

import os

import ding_lite.log
from ding_lite import Parallel, Task
from ding_lite.runtime import Trace
from tests.programs.given import given, say

TRACED = getattr(given, "traced", False)


def main():
    with Task() as task:

        def step(ctx):
            say("up", task.router.node_id, os.getpid())
            task.wait_for("the end")
            say("after", task.router.node_id, ctx.finish)

        if TRACED:
            task.use_step_wrapper(Trace("trace.json"))
        task.use(lambda ctx: None).use(step).run()


if given.log:
    ding_lite.log.configure()
if __name__ == "__main__":
    Parallel.runner(given.nodes, auto_recover=TRACED)(main)
