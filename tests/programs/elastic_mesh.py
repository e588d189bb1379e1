"""Nodes of a mesh call each other, those that join later too."""

from ding_lite import Parallel, Task
from ding_lite.distributed import World
from tests.programs.given import say


def main():
    world, router = World.current(), Parallel()
    router.register("who", lambda: world.node_id)
    with Task() as task:

        def greet(ctx):
            if world.node_id == 3:
                say("asked", *[router.call(k, "who") for k in (0, 1, 2)])
                task.emit("hello", 3)
                say("gathered", *world.group([0, 3]).all_gather(world.node_id))
            elif world.node_id == 0:
                task.wait_for("hello")
                say("gathered", *world.group([0, 3]).all_gather(world.node_id))
                task.finish = True
            else:
                task.wait_for("hello")
                say("hears", world.node_id)
            task.wait_for("the end")

        say("begins", world.node_id)
        task.use(greet).run(max_step=1)


if __name__ == "__main__":
    Parallel.runner(1, "mesh")(main)
