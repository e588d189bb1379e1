"""Two collectors and a learner, by whatever has started them."""

import os

from ding_lite import Parallel, Task
from ding_lite.distributed import World
from tests.programs.given import say


def main():
    arrived = set()
    with Task() as task:

        def play(ctx):
            task.emit("played", task.router.node_id)
            task.wait_for("the end that never comes")

        def learn(ctx):
            task.wait_for("the end that never comes")

        def hear(node):
            arrived.add(node)
            if len(arrived) == 2:
                task.finish = True

        if task.match_labels("learner"):
            task.on("played", hear)
        task.use(play, filter_labels="collector").use(learn, filter_labels="learner").run()
        members = World.current().group("collector").members
    say(task.router.node_id, sorted(task.labels), members)


if __name__ == "__main__":
    num_nodes, topology = os.environ["RUNNER"].split(",")
    Parallel.runner(int(num_nodes), topology, roles=["learner", "collector", "collector"])(main)
