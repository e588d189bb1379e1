"""A collector and a learner in shells of their own."""

import sys

from ding_lite import Parallel, Task
from ding_lite.distributed import World


def main(first):
    world, received = World.current(), []
    with Task() as task:

        def collect(ctx):
            task.emit("collected", first + ctx.total_step)
            if ctx.total_step == 99:
                task.wait_for("the end that never comes")

        def train(ctx):
            task.wait_for("the end that never comes")

        def hear(number):
            received.append(number)
            if len(received) == 100 and task.match_labels("learner"):
                task.finish = True

        task.on("collected", hear)
        task.use(collect, filter_labels="collector").use(train, filter_labels="learner").run()
        everybody = world.group(["learner", "collector"])
        message = everybody.all_gather(f"from {world.node_id}")
        return sorted(task.labels), received == [*range(first, first + 100)], message


if __name__ == "__main__":
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    runner = Parallel.runner(n_parallel_workers=3, topology="star", ports=[1, 2])
    print(runner(main, first))
