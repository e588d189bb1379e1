"""Collectors behind hubs send items, a learner at the root publishes weights."""

import json
import os
from collections import Counter

import numpy as np

from ding_lite import Parallel, Task
from tests.programs.given import say


def main():
    with Task() as task:
        router = task.router
        say("up", router.node_id, os.getpid())
        taken, numbers, since = Counter(), {}, {}

        def note_return(node):
            since.update(version=sum(taken.values()), taken=Counter(taken), seen=Counter())

        def learn(ctx):
            item = router.receive("work", timeout=15.0, until=lambda: task.finish)
            node, number, seen = item.value
            taken[node] += 1
            numbers.setdefault(node, []).append(number)
            ctx.weights = np.full(100_000, sum(taken.values()))
            if min(taken[leaf] for leaf in (3, 4, 5)) == 20:
                say("flows")
            if since and seen > since["version"]:
                since["seen"][node] += 1
                ctx.finish = min(since["seen"][leaf] for leaf in (3, 4, 5)) >= 20

        def collect(ctx):
            weights = task.parallel_ctx.of("node.0").get("weights", np.zeros(1))
            assert (weights == weights[0]).all()  # it has come by two segments, over a hub
            item = router.node_id, ctx.total_step, int(weights[0])
            router.send("work", item, to="learner", timeout=15.0, until=lambda: task.finish)

        task.on("node_joined", note_return)
        task.use(learn, filter_labels="learner")
        task.use(lambda ctx: task.wait_for("the end"), filter_labels="hub")
        task.use(collect, filter_labels="collector")
        task.run()
    return numbers


if __name__ == "__main__":
    roles = ["learner", "hub", "hub", "collector", "collector", "collector"]
    numbers, *_ = Parallel.runner(6, "tree:2", roles=roles, auto_recover=True)(main)
    of_leaves = [numbers[leaf] for leaf in (3, 4, 5)]
    print(json.dumps([sorted(of_leaf) == [*range(len(of_leaf))] for of_leaf in of_leaves]))
