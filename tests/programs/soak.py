"""IMPALA with numbered items from collectors and numbered events from the learner."""

import multiprocessing
import os
import pathlib
import time

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import World
from ding_lite.rl import IMPALA, IMPALAConfig, make_envs
from ding_lite.rl.checkpoint.save_load import MANIFEST
from tests.programs.given import given, say

ROLES = given.roles
ME = f"{os.getpid()}-{time.monotonic_ns()}"


def write(name, *words):
    with open(name, "ab", buffering=0) as file:
        file.write((" ".join(map(str, words)) + "\n").encode())


def main():
    world = World.current()
    role = ROLES[world.node_id]
    envs = make_envs("CartPole-v1", 8, seed=world.node_seed, mode="native")
    eval_envs = make_envs("CartPole-v1", 10, seed=500, mode="native")
    policy = IMPALA(envs.spec, IMPALAConfig(lr=2e-4, gamma=0.98))
    with Task() as task:
        router, numbers = task.router, iter(range(10**9))

        def hear(sender, number):
            write(f"events-{world.node_id}", sender, number, ME)

        def send_number(ctx):
            router.send(
                "numbers",
                [world.node_id, ME, next(numbers)],
                to="learner",
                in_flight=given.in_flight,
                timeout=120.0,
                until=lambda: ctx.finish,
            )

        def take_numbers(ctx):
            while (item := router.receive("numbers", timeout=None, until=lambda: True)) is not None:
                write("items", *item.value, ME)

        def emit_number(ctx):
            task.emit("number", ME, next(numbers), only_remote=True)

        def end(ctx):
            if ctx.total_step % 20 == 0 and pathlib.Path("go").exists():
                ctx.finish = True

        def draw(ctx):
            if "eval_value" in ctx:
                write("curve", ctx.get("env_step", 0), ctx.eval_value)

        if role == "collector":
            task.on("number", hear)
            task.use(mw.fetch_weights(policy, max_staleness=8, timeout=120.0))
            task.use(mw.collect(policy, envs, unroll=32))
            task.use(mw.send("trajectories", to="learner", in_flight=1, timeout=120.0))
            task.use(send_number)
        else:
            parts = {"policy": policy, "task": task}
            task.use(mw.receive("trajectories", timeout=120.0))
            task.use(take_numbers)
            task.use(mw.train(policy)).use(mw.publish_weights(policy)).use(
                mw.count_collected("collector")
            )
            task.use(mw.evaluate(policy, eval_envs, every=500)).use(draw).use(emit_number)
            task.use(mw.checkpoint(parts, "checkpoint", every=200)).use(end)
            if pathlib.Path("checkpoint", MANIFEST).exists():
                mw.resume(parts, "checkpoint")
        port = (router.address or "").rpartition(":")[2]
        say("at", world.node_id, os.getpid(), multiprocessing.parent_process().pid, port or 0)
        task.run()
    return task.ctx.total_step


if __name__ == "__main__":
    print(
        Parallel.runner(
            len(ROLES),
            "star",
            roles=ROLES,
            protocol="tcp",
            auto_recover=True,
            max_retries=1000,
        )(main)
    )
