"""Collectors that join get weights, and their shard of a replay is drawn from."""

from contextlib import suppress

import torch

from ding_lite import Parallel, Task
from ding_lite.distributed import ModelServer, ShardedReplay, World
from ding_lite.errors import DeadlineExceeded
from tests.programs.batches import SPEC, batch_of
from tests.programs.given import say


def main():
    world = World.current()
    server = ModelServer(name="actor")
    replay = ShardedReplay(world.group("collector"), SPEC, shard_capacity=100)
    drawn = set()

    with Task() as task:

        def learn(ctx):
            server.publish({"w": torch.full((3,), float(ctx.total_step))})
            with suppress(DeadlineExceeded):  # it learns on whether or not there is news
                if (item := task.receive("items", timeout=0.1)) is not None:
                    say("got", *item)
            ctx.train_iter = ctx.total_step + 1
            if len(replay) >= 4:
                found = {1 + int(rank) for rank in replay.sample(4).shard}
                if not found <= drawn:
                    drawn.update(found)
                    say("draws", *sorted(drawn))
                    ctx.finish = drawn == {1, 2}

        def collect(ctx):
            server.wait(newer_than=None)
            replay.add(batch_of(world.node_id, size=4))
            task.send("items", ctx.total_step, to="learner")
            task.wait_for("the end that never comes")

        task.use(learn, filter_labels="learner").use(collect, filter_labels="collector")
        task.run()


if __name__ == "__main__":
    print(Parallel.runner(1, "star")(main))
