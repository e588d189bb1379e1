"""Each process says that it is being imported, and that its main begins."""

import multiprocessing
import os

from ding_lite import Parallel, Task
from tests.programs.given import say


def enter(stage):
    node = multiprocessing.current_process()
    say("up", getattr(node, "node_id", -1), os.getpid(), stage)


enter("import")


def main():
    enter("main")
    with Task() as task:
        task.use(lambda ctx: task.wait_for("nothing")).run()


if __name__ == "__main__":
    Parallel.runner(3, "star", auto_recover=True)(main)
