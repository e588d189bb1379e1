"""`ding-lite`, called as a user does: a process of its own, from a folder of the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MODULE = ("-m", "ding_lite")
Typed = Callable[..., tuple[int | None, str, str]]
"""The type of the fixture `typed`."""
PROGRAM = (ROOT / "tests" / "programs" / "commands.py").read_text()


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
