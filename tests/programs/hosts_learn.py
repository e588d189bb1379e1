"""Two learners average a tensor, while a third node waits for the end."""

import torch

from ding_lite import Parallel, Task
from ding_lite.distributed import World


def main():
    learners, mine = World.current().group("learner"), torch.ones(100_000)
    with Task() as task:
        if not learners.is_member:
            task.use(lambda ctx: task.wait_for("the end")).run()
            return None
        learners.averager()(mine.mul_(Parallel().node_id))
        task.use(lambda ctx: setattr(ctx, "finish", True)).run()
    return mine.unique().tolist()


if __name__ == "__main__":
    roles = ["learner", "learner", "collector"]
    print(Parallel.runner(3, roles=roles, startup_timeout=30.0)(main))
