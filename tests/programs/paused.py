"""A learner waits until a node joins it."""

import os
import sys
from typing import Any

from ding_lite import Parallel, Task
from tests.programs.given import say


def main():
    with Task(attach_callback=attached if JOINS else None) as task:

        def learn(ctx):
            ctx.train_iter = ctx.total_step
            if ctx.total_step == 50:
                say("waits")
                task.wait_for("go on")
                ctx.finish = True

        def play(ctx):
            say("plays", os.getpid())
            if JOINS:
                task.emit("go on")
            task.wait_for("never")

        task.on("node_lost", lambda node: say("lost", node))
        task.on("node_joined", lambda node: say("joined", node))
        task.use(learn, filter_labels="node.0").use(play, filter_labels="node.[!0]*").run()
        return task.router.node_id, sorted(task.labels)


def attached(newest):
    say("attached", newest.train_iter)


JOINS = "joins" in sys.argv
HOW: Any = (
    {"attach_to": sys.argv[2], "node_ids": [2], "labels": "late"} if len(sys.argv) > 2 else {}
)

if __name__ == "__main__":
    print(Parallel.runner(1, "star", **HOW)(main))
