"""A learner and collectors, of which some join later and leave again."""

import os
import sys
from contextlib import suppress

from ding_lite import Parallel, Task
from ding_lite.errors import DeadlineExceeded
from ding_lite.parallel.router.group import World
from tests.programs.given import pause, say

HOW = sys.argv[1] if sys.argv[1:] and not sys.argv[1].isdigit() else ""


def attached(newest):
    say("attached", newest.get("train_iter", 1) > 0)


def main():
    world = World.current()
    with Task(attach_callback=attached if HOW else None) as task:

        def learn(ctx):
            with suppress(DeadlineExceeded):  # it goes on whether or not there is news
                if (item := task.receive("items", timeout=0.1)) is not None:
                    say("got", *item)
            ctx.train_iter = ctx.total_step + 1
            pause(task, 0.02)
            task.emit("tick")

        def collect(ctx):
            task.send("items", ctx.total_step, to="learner")
            if HOW == "finish" and ctx.total_step == 3:
                ctx.finish = True
            if HOW == "stay":
                say("plays", os.getpid())
                task.wait_for("the end that never comes")
            elif not HOW:
                task.wait_for("tick")

        for name in ("node_joined", "node_left", "node_lost"):
            task.on(name, lambda node, name=name: say(name, node, world.num_nodes))
        task.use(learn, filter_labels="learner").use(collect, filter_labels="collector")
        say("begins", world.node_id, *sorted(task.labels))
        task.run(max_step=3 if HOW == "leave" else None)
        return world.node_id, [*world.group(["learner", "node.1"]).members]


if __name__ == "__main__":
    if "KIND" in os.environ:  # a job that a runner has started
        ports = [int(port) for port in sys.argv[-2:]]
        roles = ["learner", "collector"]
        runner = Parallel.runner(2, os.environ["KIND"], roles=roles, elastic=True, ports=ports)
    else:
        runner = Parallel.runner(1, "star")
    print(runner(main))
