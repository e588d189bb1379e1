"""Programs that tests start as processes of their own, each a file by itself.

A test gives a program what it needs to know as one word of JSON, see `tests.procs.programs`.
"""

import json
import logging
import os
import pathlib
import sys
from contextlib import suppress
from types import SimpleNamespace

logging.lastResort = logging.NullHandler()  # else a warning may look like a line of the program

given = SimpleNamespace()
"""What the test has given, by its names."""
if sys.argv[1:] and sys.argv[1].startswith("{"):
    given = SimpleNamespace(**json.loads(sys.argv[1]))


def say(*words):
    """Write a line for the test at once, and as a whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def memory(name):
    """Return this process's memory in bytes: `RssAnon`, its own, or `VmHWM`, the most so far."""
    status = pathlib.Path("/proc/self/status").read_text().split()
    return 1024 * int(status[status.index(f"{name}:") + 1])


def pause(task, seconds):
    """Let a node wait for so long, and hear events meanwhile."""
    from ding_lite.errors import DeadlineExceeded  # a program says itself what it imports first

    with suppress(DeadlineExceeded):
        task.wait_for("nothing", timeout=seconds)


def begin_incarnation(node):
    """Say that a node is up, and return how often it has been started."""
    number = len([*pathlib.Path().glob(f"incarnation-{node}-*")]) + 1
    pathlib.Path(f"incarnation-{node}-{number}").touch()
    say("up", node, os.getpid())
    return number
