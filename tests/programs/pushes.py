"""Agents push gradients, and count in a file what was begun and what was answered."""

import os

import numpy as np
import torch

from ding_lite import Parallel, Task
from ding_lite.distributed import GradientServer, World
from ding_lite.rl import A2C, A2CConfig, make_envs
from tests.programs.given import given, say

NUM_NODES = len(given.roles)
books = np.memmap("books", np.int64, "r+", shape=(NUM_NODES, 2))  # pushes begun, and answered


def main():
    world = World.current()
    node, spec = world.node_id, make_envs("CartPole-v1", 1).spec
    policy = A2C(spec, A2CConfig(hidden=(8,)))
    servers = world.group("server")
    server = GradientServer(servers, policy, max_staleness=2)
    grad_P = torch.full((sum(w.numel() for w in policy.weights().values()),), 1e-3)
    with Task() as task:

        def push(ctx):
            if ctx.total_step % 4 == 0:
                server.pull(policy, until=lambda: ctx.finish)
            books[node, 0] += 1
            receipt = server.push(grad_P, until=lambda: ctx.finish)
            books[node, 1] += receipt is not None

        task.use(push, "agent")
        task.use(lambda ctx: server.wait_for_updates(50, until=lambda: ctx.finish), "server.0")

        def look(ctx):
            if os.path.exists("enough") and server.version > 200:
                ctx.finish = True

        task.use(look, "server.0")
        task.use(lambda ctx: task.wait_for("never"), "server.1")
        say("up", node, os.getpid())
        task.run()
    # Each answer is counted before this; behind it there are no further pushes.
    world.group("node.*").barrier()
    return server.num_applied, server.num_refused, server.version


if __name__ == "__main__":
    print(Parallel.runner(NUM_NODES, roles=given.roles, auto_recover=True, max_retries=9)(main)[0])
