"""A tree of processes: what the root says and what the leaves send goes on when a hub is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.procs.programs import Program, run

LEARNING = """
import json
import numpy as np
from collections import Counter

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
"""


def test_weights_and_items_go_on_when_a_hub_was_killed(folder: Path) -> None:
    with Program(folder, LEARNING) as program:
        pids = program.pids(6)
        program.line("flows")
        os.kill(pids[1], signal.SIGKILL)
        assert program.end() == (0, program.seen)
        assert program.seen.splitlines()[-1] == "[true, true, true]", program.seen
        assert program.left_over() == []


CHAIN = """
def main():
    with Task() as task:
        task.use(lambda ctx: setattr(ctx, "finish", task.router.node_id == 3)).run()
        task.router.register("double", lambda x: 2 * x)
        double = task.router.call(3 - task.router.node_id, "double", task.router.node_id)
        World.current().group("node.*").barrier()
    return double

if __name__ == "__main__":
    print(Parallel.runner(4{topology})(main))
"""


def test_the_runner_the_command_line_and_the_environment_know_a_tree(folder: Path) -> None:
    source = "from ding_lite.parallel.group import World\n" + CHAIN
    said = "[0, 2, 4, 6]"
    assert run(folder, source.format(topology=', "tree:1"'))[1].splitlines()[-1] == said
    command = ["-m", "ding_lite", "run", "program.py:main", "--nodes", "4", "--topology", "tree:1"]
    code, output = run(folder, source.format(topology=""), *command)
    assert "main returned 0 on node 0, 2 on node 1, 4 on node 2, 6 on node 3" in output
    assert code == 0
    from_environment = "os.environ['DING_LITE_TOPOLOGY'] = 'tree:1'\n" + source.format(topology="")
    assert run(folder, from_environment)[1].splitlines()[-1] == said
