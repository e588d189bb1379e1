"""Programs of the tests' own, each run by a fresh interpreter, and what becomes of them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from ding_lite.parallel.address import _base

ROOT = Path(__file__).resolve().parent.parent.parent
PREAMBLE = """
import logging, os, signal, sys, threading
import ding_lite.log
from ding_lite import Parallel, Task

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


class Program:
    """A running program; its output and its errors are one stream of lines."""

    def __init__(self, folder: Path, source: str, *command: str, stdin: str = "") -> None:
        (folder / "program.py").write_text(PREAMBLE + source)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("DING_LITE_")}
        environ |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, *(command or ("program.py",))],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        self.seen = ""
        assert self.process.stdin is not None
        with self.process.stdin as file:
            file.write(stdin)

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self, containing: str = "") -> list[str]:
        """Return the words of the next line that contains something."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen += line
            if containing in line:
                return line.split()
        raise AssertionError(f"no line contains {containing!r}:\n{self.seen}")

    def pids(self, count: int) -> dict[int, int]:
        """Read as many lines `up <node> <pid>`."""
        found = [self.line("up ") for _ in range(count)]
        return {int(words[1]): int(words[2]) for words in found}

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and all the output."""
        assert self.process.stdout is not None
        self.seen += self.process.stdout.read()
        return self.process.wait(), self.seen

    def left_over(self) -> list[str]:
        """Name what the program has left in the directories where it may write."""
        return sorted(p.name for p in self.folder.iterdir() if p.name.startswith(("ding", "pymp")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self.process:
            if self.process.poll() is None:
                self.process.kill()


def run(folder: Path, source: str, *command: str, stdin: str = "") -> tuple[int, str]:
    with Program(folder, source, *command, stdin=stdin) as program:
        return program.end()


def wait_until_gone(*pids: int, seconds: float = 10.0) -> None:
    """Wait for the end of processes that need not be children of this one."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ended, _, _ = select.select([handle], [], [], seconds)
        finally:
            os.close(handle)
        if not ended:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"process {pid} still runs")


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder whose path leaves room for those of sockets."""
    with tempfile.TemporaryDirectory(prefix="t-", dir=_base()) as path:
        yield Path(path)
