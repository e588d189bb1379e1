"""Four nodes in a row call each other over those in between."""

from ding_lite import Parallel, Task
from ding_lite.parallel.router.group import World


def main():
    with Task() as task:
        task.use(lambda ctx: setattr(ctx, "finish", task.router.node_id == 3)).run()
        task.router.register("double", lambda x: 2 * x)
        double = task.router.call(3 - task.router.node_id, "double", task.router.node_id)
        World.current().group("node.*").barrier()
    return double


if __name__ == "__main__":
    print(Parallel.runner(4)(main))
