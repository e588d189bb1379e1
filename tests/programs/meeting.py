"""Each node prints which peers it hears and loses."""

from ding_lite import Parallel, Task
from tests.programs.given import say


def main():
    router = Parallel()
    received = set()
    with Task() as task:

        def step(ctx):
            task.emit("here", router.node_id, only_remote=True)
            task.wait_for("go on", timeout=None)

        def hear(node):
            if node not in received:
                received.add(node)
                say("received", node)

        def lost(node):
            received.discard(node)
            say("lost", node)

        def joined(node):
            task.emit("here", router.node_id, only_remote=True)

        task.on("here", hear)
        task.on("node_lost", lost)
        task.on("node_joined", joined)
        say("at", router.node_id, router.address)
        task.use(step).run()
    return router.node_id


if __name__ == "__main__":
    print(Parallel.runner(1, startup_timeout=15)(main))
