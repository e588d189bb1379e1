"""Functions that `ding-lite run` starts."""

import os
import sys

from ding_lite import Parallel, Task


def main():
    return sorted(Parallel().labels)


def neighbours():
    return sorted(Parallel().labels), Parallel().coordinator_of([0, 2])


def place():
    return Parallel().address


def arguments():
    return sys.argv[1:]


def take(first, second="usual"):
    return first, second


def nothing():
    pass


def fail(node="0"):
    if Parallel().node_id == int(node):
        raise ValueError("too hot")
    with Task() as task:
        task.use(lambda ctx: task.wait_for("never")).run()


def misconfigure():
    from ding_lite.settings.rules import check_all, positive

    check_all(positive(lr=-1.0))


def leave():
    sys.exit(3)


def die_once(file):
    if not os.path.exists(file):
        open(file, "w").close()
        os.abort()
    return "alive"


def wait():
    os.write(1, b"up\n")
    with Task() as task:
        task.use(lambda ctx: task.wait_for("never")).run()


inner = lambda: None  # noqa: E731 - refused as a lambda
