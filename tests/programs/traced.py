"""A learner and a collector send each other one message of each kind, and trace them."""

from contextlib import suppress

from ding_lite import Parallel, Task
from ding_lite.distributed import World
from ding_lite.errors import DeadlineExceeded
from ding_lite.runtime import Trace


def main():
    with Task() as task:
        router = task.router
        if router.node_id == 0:
            router.register("double", lambda number: 2 * number)

        def begin(ctx):
            # All have their trace open: what is sent before that has no other end.
            World.current().group("node.*").barrier()

        def collect(ctx):
            task.send("episodes", [1, 2, 3], to="learner")
            task.emit("collected", ctx.total_step)
            ctx.answer = router.call(0, "double", 21)
            task.wait_for("tick")
            task.emit("received")

        def learn(ctx):
            task.receive("episodes")
            while len(received) <= ctx.total_step and not ctx.finish:
                task.emit("tick")  # again: one that comes before it is waited for is missed
                with suppress(DeadlineExceeded):
                    task.wait_for("received", timeout=0.1)

        task.use_step_wrapper(Trace("trace.json"))
        task.on("collected", lambda number: None)
        received = []
        task.on("received", lambda: received.append(True))
        task.use(begin)
        task.use(learn, filter_labels="learner").use(collect, filter_labels="collector")
        task.run(max_step=3)


if __name__ == "__main__":
    Parallel.runner(2, "star", roles=["learner", "collector"])(main)
