"""Nodes print which peers they lose and find again."""

import ding_lite.log
from ding_lite import Parallel, Task
from tests.programs.given import say


def main():
    with Task() as task:

        def work(ctx):
            if ctx.total_step == 0:
                say("up")
            task.wait_for("never", timeout=None)

        task.on("node_lost", lambda node: say("lost", node))
        task.on("node_joined", lambda node: say("joined", node))
        task.use(work).run()


if __name__ == "__main__":
    ding_lite.log.configure()
    Parallel.runner(2)(main)
