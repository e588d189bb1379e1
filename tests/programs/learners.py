"""Two learners of one policy in pipelines, and a node that waits for their end."""

import os

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import World
from ding_lite.rl import DQN, DQNConfig
from tests.programs.batches import CONFIG, SPEC, batch_of, digest
from tests.programs.given import given, say


def main():
    incarnation = f"incarnation-{Parallel().node_id}"
    is_awaited = given.ends == "always" or os.path.exists(incarnation)  # else "later"
    open(incarnation, "w").close()
    learners = World.current().group("learner")
    policy = DQN(SPEC, DQNConfig(seed=Parallel().node_id, **CONFIG))
    if learners.is_member:
        policy.data_parallel(learners)
    with Task() as task:

        def feed(ctx):
            ctx.transitions = batch_of(ctx.total_step)
            if ctx.total_step == 30:
                say("training", Parallel().node_id)

        def end(ctx):
            task.wait_for("trained")
            ctx.finish = True

        learner = task.at("learner")
        learner.use(feed).use(mw.train(policy))
        task.at("learner.0").use(
            lambda ctx: is_awaited and ctx.get("train_iter") == 100 and task.emit("trained")
        )
        task.use(end, "watcher")
        say("up", Parallel().node_id, os.getpid())
        task.run()
    return digest(policy) if learners.is_member else None


if __name__ == "__main__":
    roles = ["learner", "learner", "watcher"]
    results = Parallel.runner(3, "mesh", roles=roles, auto_recover=given.ends == "later")(main)
    print("ended", results[2])
