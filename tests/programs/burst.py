"""100,000 events at once."""

from ding_lite import Parallel, Task
from tests.programs.given import given


def main(num_events):
    received = []
    with Task() as task:

        def hear(number, padding):
            received.append(number)
            if len(received) == num_events:
                task.finish = True

        def burst(ctx):
            for number in range(num_events):
                task.emit("n", number, b"x" * 50, only_remote=True)
            task.wait_for("nothing")

        task.on("n", hear)
        task.use(lambda ctx: task.wait_for("nothing"), "node.0").use(burst, "node.1").run()
    return received == [*range(num_events)]


if __name__ == "__main__":
    print(Parallel.runner(2, protocol=given.protocol)(main, 100_000))
