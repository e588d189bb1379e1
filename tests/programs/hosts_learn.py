"""Two learners average their gradients, a third node collects for them."""

import torch

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import World
from ding_lite.rl import DQN, DQNConfig, Transitions
from tests.programs.batches import CONFIG, SPEC, batch_of, digest


def main():
    world = World.current()
    learners = world.group("learner")
    policy = DQN(SPEC, DQNConfig(seed=world.node_id, **CONFIG))
    with Task() as task:
        if not learners.is_member:

            def collect(ctx):
                item = batch_of(ctx.total_step)
                parts = {name: getattr(item, name) for name in Transitions.__dataclass_fields__}
                task.router.send("batches", parts, to="learner", until=lambda: task.finish)

            task.use(collect).run()
            return None

        def fetch(ctx):
            item = task.router.receive("batches")
            ctx.transitions = Transitions(**item.value)
            taken.append(item.value["action"])

        def end(ctx):  # behind the update, for which the other one is needed
            ctx.finish = ctx.total_step == 19

        taken, mean = [], torch.full((100_000,), float(world.node_id))
        policy.data_parallel(learners)
        policy.reduce_gradient(mean)
        task.use(fetch).use(mw.train(policy)).use(end).run()
    first, second = learners.all_gather(taken)
    same = sum(bool((one == other).all()) for one, other in zip(first, second, strict=False))
    return mean.unique().tolist(), same, learners.all_gather(digest(policy))


if __name__ == "__main__":
    roles = ["learner", "learner", "collector"]
    print(Parallel.runner(3, roles=roles, startup_timeout=30.0)(main))
