"""Trains to update 40 with a checkpoint each 10; rank 1 is killed behind update 25, once."""

import tests.programs.last_words  # isort: skip  # noqa: F401

import os
import signal
import time
from pathlib import Path

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import World
from ding_lite.rl import DQN, DQNConfig
from tests.programs.batches import SPEC, batch_of
from tests.programs.given import say

CHECKPOINT, EVERY, KILLED_AT, LAST = Path("checkpoint"), 10, 25, 40


def main():
    num_restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    learners = World.current().group("node.*")
    policy = DQN(SPEC, DQNConfig(seed=learners.rank, batch_size=64))
    parts, done = {"policy": policy}, 0
    if learners.rank == 0 and CHECKPOINT.exists():
        done = mw.resume(parts, CHECKPOINT)["train_iter"]
    done = learners.broadcast(done)
    policy.data_parallel(learners)  # all become what the first one is
    with Task() as task:

        def feed(ctx):
            if ctx.total_step == 0:
                ctx.train_iter = done
                ctx.keep("train_iter")
            ctx.transitions = batch_of(1_000 * ctx.train_iter + learners.rank, size=64)

        def look(ctx):
            if ctx.train_iter == done + 1:
                say("training", num_restarts, learners.rank, ctx.train_iter, time.monotonic())
            if num_restarts == 0 and ctx.train_iter == KILLED_AT and learners.rank == 1:
                say("killed", time.monotonic())
                os.kill(os.getpid(), signal.SIGKILL)
            ctx.finish = ctx.train_iter == LAST

        task.use(feed).use(mw.train(policy)).use(look)
        task.use(mw.checkpoint(parts, CHECKPOINT, every=EVERY), filter_labels="node.0")
        task.run()
    weights = policy.weights().values()
    say("ended", num_restarts, learners.rank, float(sum(w.double().sum() for w in weights)))


if __name__ == "__main__":
    Parallel.runner(2, "star")(main)
