"""A node publishes large states while its reader is stopped."""

import os
import pathlib

import numpy as np

from ding_lite import Parallel, Task
from tests.programs.given import given, memory, pause, say

SIZE = given.size * 2**20
NUM_STEPS = 10


def memory_and_segments():
    segments = pathlib.Path("/dev/shm").glob(f"ding_lite-*-{os.getpid()}-*")
    return memory("RssAnon") + sum(512 * file.stat().st_blocks for file in segments)


def main():
    node = Parallel().node_id
    state, used = np.zeros(SIZE // 8), []
    with Task() as task:

        def publish(ctx):
            number = min(ctx.total_step, NUM_STEPS)
            if ctx.total_step == NUM_STEPS:
                say("published")
            if ctx.total_step > NUM_STEPS:
                pause(task, 1.0)
            state[:] = number
            ctx.state_dict, ctx.number = {"w": state}, number
            used.append(memory_and_segments())

        def read(ctx):
            pause(task, 0.02)
            latest = task.parallel_ctx.of(0)
            if latest.get("number", -1) > ctx.get("seen", -1):
                ctx.seen = latest.number
                ctx.keep("seen")
                say("read", latest.number, *np.unique(latest.state_dict["w"]))
                task.finish = latest.number == NUM_STEPS

        task.use(publish, "node.0").use(read, "node.1")
        say("up", node, os.getpid())
        if node == 0:
            pathlib.Path("go").read_text()
        task.share("state_dict", "number").run()
    return [round((now - used[0]) / SIZE, 1) for now in used]


if __name__ == "__main__":
    print(Parallel.runner(2, protocol=given.protocol)(main))
