"""Each node prints which peers it hears and loses."""

import os
import sys

from ding_lite import Parallel, Task
from tests.programs.given import say


def main():
    router = Parallel()
    received, heard_by = set(), set()
    with Task() as task:

        def step(ctx):
            task.emit("here", router.node_id, only_remote=True)
            task.wait_for("go on", timeout=None)

        def hear(node):
            if node not in received:
                received.add(node)
                say("received", node)
                task.emit("received", node, router.node_id, only_remote=True)

        def lost(node):
            received.discard(node)
            say("lost", node)

        def end_when_all_have_heard(node, by):
            heard_by.update({by} if node == router.node_id else ())
            task.finish = len(heard_by) == NUM_NODES - 1

        def joined(node):
            task.emit("here", router.node_id, only_remote=True)

        task.on("here", hear)
        task.on("node_lost", lost)
        task.on("node_joined", joined)
        say("at", router.node_id, router.address)
        if "ends" in sys.argv:
            task.on("received", end_when_all_have_heard)
        task.use(step).run()
    return router.node_id


NUM_NODES = int(os.environ["DING_LITE_NUM_NODES"])

if __name__ == "__main__":
    print(Parallel.runner(1, startup_timeout=15)(main))
