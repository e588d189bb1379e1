"""A node emits fifty events and ends the job."""

import os
import signal
import threading

import ding_lite.log
from ding_lite import Parallel, Task
from tests.programs.given import say


def main():
    received, told_to = [], threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: told_to.set())
    with Task() as task:

        def tell(ctx):
            say("up", os.getpid())
            told_to.wait()
            for number in range(50):
                task.emit("n", number)
            ctx.finish = True

        def listen(ctx):
            say("up")
            task.wait_for("never")

        task.on("n", received.append)
        task.use(tell, filter_labels="learner").use(listen, filter_labels="collector").run()
    say("ended")
    return len(received)


if __name__ == "__main__":
    ding_lite.log.configure()
    print(Parallel.runner(2)(main))
