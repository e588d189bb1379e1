"""Nodes of a star emit numbers, and print which peers they lose and find again."""

import ctypes
import os
import pathlib

from ding_lite import Parallel, Task
from tests.programs.given import given, pause, say

HANGS = given.hangs


def main():
    node = Parallel().node_id
    received = {peer: [] for peer in Parallel().peers}
    say("up", node, os.getpid())
    with Task() as task:

        def talk(ctx):
            task.emit("n", node, ctx.total_step, only_remote=True)
            pause(task, 0.02)
            if (node, ctx.total_step) == (HANGS, 10):
                ctypes.PyDLL(None).usleep(5_000_000)  # with Python's lock held
            if node == 0 and pathlib.Path("go").exists():
                ctx.finish = True

        task.on("n", lambda peer, number: received[peer].append(number))
        task.on("node_lost", lambda peer: say("fate", node, "lost", peer))
        task.on("node_joined", lambda peer: say("fate", node, "joined", peer))
        task.use(talk).run()
    return {peer: numbers == [*range(len(numbers))] for peer, numbers in received.items()}


if __name__ == "__main__":
    print(Parallel.runner(3, "star", protocol=given.protocol)(main))
