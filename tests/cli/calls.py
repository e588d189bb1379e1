"""`ding-lite`, called as a user does: a process of its own, from a folder of the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MODULE = ("-m", "ding_lite")
PROGRAM = r"""
import os, sys
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
    from ding_lite.settings import check_all, positive
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

inner = lambda: None
"""


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a call: what the tests have, without settings, and this."""
    bare = {name: text for name, text in os.environ.items() if not name.startswith("DING_LITE_")}
    return {**bare, "PYTHONPATH": str(ROOT), **variables}


def call(
    folder: Path, *words: str, command: tuple[str, ...] = MODULE, **variables: str
) -> tuple[int, str, str]:
    """Call `ding-lite` in a folder; return the exit code, the output and the errors."""
    finished = subprocess.run(
        [sys.executable, *command, *words],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=15,
    )
    return finished.returncode, finished.stdout, finished.stderr
