"""`ding-lite`, called as a user does: a process of its own, from a folder of the user's."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

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
    folder: Path,
    *words: str,
    command: tuple[str, ...] = MODULE,
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE,
    **variables: str,
) -> tuple[int, str, str]:
    """Call `ding-lite` in a folder; return the exit code, the output and the errors."""
    finished = subprocess.run(
        [sys.executable, *command, *words],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
    )
    return finished.returncode, finished.stdout, finished.stderr


def on_a_terminal(
    folder: Path,
    *words: str,
    columns: int,
    watch: Callable[[subprocess.Popen[bytes], bytes], object] = lambda process, shown: None,
    **variables: str,
) -> tuple[int, str]:
    """Call `ding-lite` on a terminal; return the exit code, and what it has shown as plain text.

    `watch` is called with the process and what it has shown so far, whenever it shows more.
    """
    ours, theirs = pty.openpty()
    shown = b""
    with subprocess.Popen(
        [sys.executable, *MODULE, *words],
        cwd=folder,
        env=environment(COLUMNS=str(columns), TERM="xterm", **variables),
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        with suppress(OSError):  # what Linux says when the other side has been closed
            while part := os.read(ours, 4096):
                shown += part
                watch(process, shown)
        os.close(ours)
    return process.returncode, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
