"""Runs that can be killed: a program that forks one for each line it reads, run by test_resume.

Importing everything takes a second or two; a fork of a process that has done so begins at once.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from ding_lite.errors import DingLiteError
from ding_lite.recipes.training import train

KILLABLE = ("open", "fsync", "replace", "unlink")


def kill_at_operation(count: int) -> None:
    """Kill this process just before its n-th operation on a file."""
    left = count

    def patch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(owner, name, counted)

    for name in KILLABLE:
        patch(os if name == "fsync" else Path, name)


def run(given: dict[str, Any]) -> None:
    """Train by the settings of a line, and exit."""
    if "kill_at_operation" in given:
        kill_at_operation(given.pop("kill_at_operation"))
    if "largest_file" in given:
        size = given.pop("largest_file")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    train(given.pop("policy"), given.pop("env"), quiet=True, **given)


def main() -> None:
    """Fork a run for each line; print its process id, then its exit code."""
    with tempfile.TemporaryDirectory() as folder:  # imports what a run needs only on its way
        for env in ("CartPole-v1", "ding_lite/Catch-v0"):
            train("dqn", env, max_env_steps=200, out=f"{folder}/{env}", quiet=True)
    gc.freeze()  # a collection in a run would copy the pages that it shares with this process
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(json.loads(line))
                code = 0
            except DingLiteError:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
