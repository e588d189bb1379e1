"""A node publishes models, the other one reads whole versions in order."""

import os
import pathlib

import torch

from ding_lite import Parallel, Task
from ding_lite.distributed import ModelServer, World
from tests.programs.given import given, say

SIZE = 500_000  # two megabytes: through shared memory, on one machine


def main():
    world = World.current()
    server, incarnation = ModelServer(world, name="big"), 1
    say("up", world.node_id, os.getpid())
    if world.node_id == 0:
        while pathlib.Path(f"incarnation-{incarnation}").exists():
            incarnation += 1
        pathlib.Path(f"incarnation-{incarnation}").touch()
        with Task() as task:

            def publish(ctx):
                number = 1_000.0 * incarnation + ctx.total_step % 900
                server.publish(
                    {"w": torch.full((SIZE,), number), "n": torch.tensor([incarnation])},
                    half=given.half,
                )

            task.use(publish).run()
        return server.fetch().version
    seen, incarnations = [], set()
    version = None
    with Task() as task:

        def fetch(ctx):
            nonlocal version
            model = server.wait(newer_than=version, timeout=30.0, until=lambda: ctx.finish)
            if model is None:
                return
            version, w = model.version, model.weights["w"]
            number = w[0].item()
            assert (w == number).all(), "parts of two versions"
            assert w.dtype is (torch.float16 if given.half else torch.float32)
            assert server.fetch(newer_than=version) is None or server.fetch().version > version
            seen.append((int(model.weights["n"].item()), version))
            incarnations.add(seen[-1][0])
            if len(seen) == 5:
                say("reads")
            ctx.finish = len(incarnations) == 2 and seen[-1][1] > 3

        task.use(fetch).run()
    return seen == sorted(seen), len(incarnations)


if __name__ == "__main__":
    print(Parallel.runner(2, "star", auto_recover=True)(main)[1])
