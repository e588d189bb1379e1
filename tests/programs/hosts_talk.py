"""A star of which each end checks that all of the others' events, items and states arrive."""

import pathlib
from contextlib import suppress

import numpy as np

from ding_lite import Parallel, Task
from ding_lite.errors import DeadlineExceeded
from tests.programs.given import pause, say


def lead(task):
    received, taken, message, seen = {1: [], 2: []}, {1: [], 2: []}, {}, set()
    asks, last = ["under way"], []

    def step(ctx):
        if not last:
            ctx.number = ctx.total_step
            ctx.state_dict = {"w": np.full(2_000, ctx.total_step)}
        with suppress(DeadlineExceeded):
            item = task.router.receive("work", timeout=0.02)
            taken[item.node_id].append(item.value)
        if asks and len(taken[1]) > 200 < len(taken[2]):
            say(asks.pop())
        if pathlib.Path("go").exists() and "enough" not in message:
            message["enough"] = True
            task.emit("enough", only_remote=True)
        if not last and all(message.get(n) == (len(received[n]), len(taken[n])) for n in received):
            last.append(ctx.number)
            task.emit("last", ctx.number, only_remote=True)
        task.finish = len(seen) == 2

    task.on("n", lambda node, number: received[node].append(number))
    task.on("message", lambda node, *counts: message.update({node: counts}))
    task.on("seen", seen.add)
    task.on("node_lost", lambda node: say("fate", "lost", node))
    task.on("node_joined", lambda node: say("fate", "joined", node))
    task.use(step).run()
    return {node: (is_whole(received[node]), is_whole(taken[node])) for node in received}


def is_whole(numbers):
    if numbers != [*range(len(numbers))]:
        say("found", *numbers)
    return len(numbers) > 200 and numbers == [*range(len(numbers))]


def follow(task, node):
    seen, counts, enough, last = [0], [0, 0], [], []

    def step(ctx):
        newest = task.parallel_ctx.of(0)
        if "number" in newest:
            [number] = np.unique(newest.state_dict["w"])  # else it is torn
            assert seen[-1] <= number == newest.number
            seen.append(int(number))
        pause(task, 0.02)
        if enough == ["received"]:
            enough.append("message")
            task.emit("message", node, *counts)
        if last and seen[-1] == last[0]:
            task.emit("seen", node)
            last.clear()
        if enough:
            return
        task.emit("n", node, counts[0], only_remote=True)
        counts[0] += 1
        patience = {"timeout": None, "until": lambda: enough or task.finish}
        if task.router.send("work", counts[1], to="node.0", in_flight=64, **patience):
            counts[1] += 1

    task.on("enough", lambda: (enough.append("received"), task.router.wake()))
    task.on("last", last.append)
    task.use(step).run()
    return len(set(seen)) > 20


def main():
    node = Parallel().node_id
    with Task() as task:
        task.share("state_dict", "number")
        return lead(task) if node == 0 else follow(task, node)


if __name__ == "__main__":
    print(Parallel.runner(3, "star", startup_timeout=30.0)(main))
