"""A learner, an evaluator that ends the job, a collector; it says where its processes are."""

import atexit
import itertools
import multiprocessing
import pathlib
import time
from contextlib import suppress

import numpy as np

from ding_lite import Parallel, Task
from ding_lite.errors import DeadlineExceeded, NodeFailed, PeerLost, RemoteError
from tests.programs.given import given, say

if given.jumps:  # each reading of the wall clock is some more hours off, ahead or behind

    def jumping(clock, hour):
        readings = itertools.count()
        return lambda: clock() + (-1) ** next(readings) * next(readings) * hour

    time.time, time.time_ns = jumping(time.time, 3_600), jumping(time.time_ns, 3_600 * 10**9)

ROLES = ["learner", "evaluator", "collector"]


def mark(stage):
    node, fork_server = multiprocessing.current_process(), multiprocessing.parent_process()
    if hasattr(node, "node_id"):
        say("at", ROLES[node.node_id], stage, node.pid, fork_server.pid)


def mark_steps():
    counts = iter(range(1, 10))

    def mark_step(ctx):
        if (number := next(counts, None)) is not None:
            mark(f"step-{number}")

    return mark_step


def learn(task):
    task.router.register("put", lambda data: task.emit("put", only_local=True) and None)

    def learn(ctx):
        task.wait_for("put")
        ctx.train_iter = ctx.get("train_iter", 0) + 1
        ctx.keep("train_iter")
        ctx.state_dict = np.full(100_000, ctx.train_iter)

    return learn


def evaluate(task):
    def evaluate(ctx):
        newer = {"train_iter": ctx.get("train_iter", -1)}
        try:
            latest = task.wait_parallel_ctx(newer_than=newer, timeout=0.5)
        except DeadlineExceeded:  # the learner has begun anew
            latest = task.parallel_ctx
        if latest is None or "state_dict" not in latest:
            return
        ctx.train_iter = latest.train_iter
        ctx.num_seen = ctx.get("num_seen", 0) + 1
        ctx.keep("train_iter", "num_seen")
        assert (latest.state_dict == latest.state_dict[0]).all()
        if ctx.num_seen >= 10 and pathlib.Path("go").exists():
            ctx.finish = True
            mark("finish")

    return evaluate


def collect(task):
    def collect(ctx):
        try:
            task.router.call(0, "put", np.zeros(100), timeout=1.0)
        except (PeerLost, DeadlineExceeded, RemoteError):  # gone, or not there yet
            with suppress(DeadlineExceeded):
                task.wait_for("node_joined", timeout=0.05)

    return collect


mark("import")


def main():
    mark("main")
    atexit.register(mark, "exit")
    with Task() as task:
        task.use(learn(task), filter_labels="learner")
        task.use(evaluate(task), filter_labels="evaluator")
        task.use(collect(task), filter_labels="collector")
        task.use(mark_steps()).run()
    mark("return")
    return task.ctx.finish


if __name__ == "__main__":
    try:
        runner = Parallel.runner(3, roles=ROLES, **given.runner)
        print(runner(main))
    except NodeFailed:
        say("failed", time.monotonic())
        raise
