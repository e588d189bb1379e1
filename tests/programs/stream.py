"""One node gives items to three, of which two are killed."""

import os

from ding_lite import Parallel, Task
from tests.programs.given import given, pause, say

NUM_ITEMS, NUM_KILLED = 400, 2


def main():
    node, taken = Parallel().node_id, []
    with Task() as task:

        def give(ctx):
            for number in range(NUM_ITEMS):
                task.send("items", {"number": number}, to="taker")
                if number in (50, 150):
                    say("given", number)
            task.wait_for("nothing")

        def take(ctx):
            item = task.receive("items", timeout=None)
            if item is not None:
                task.emit("took", item.value["number"])
                pause(task, 0.005)

        def took(number):
            taken.append(number)
            # One that was killed may have taken an item and not have said so yet.
            task.finish = len({*taken}) >= NUM_ITEMS - NUM_KILLED

        if node == 0:
            task.on("took", took)
        task.use(give, "giver").use(take, "taker")
        say("up", node, os.getpid())
        task.run()
    return sorted(taken)


if __name__ == "__main__":
    roles = ["giver", "taker", "taker", "taker"]
    print(Parallel.runner(4, "star", roles=roles, auto_recover=True, protocol=given.protocol)(main))
