"""Programs of the tests' own, each run by a fresh interpreter, and what becomes of them."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from ding_lite.parallel.memory.segments import DIRECTORY
from ding_lite.parallel.network.address import _base
from tests.cli.calls import ROOT, environment
from tests.warm import Child, Warm

PROGRAMS = ROOT / "tests" / "programs"
PREAMBLE = """
import logging, os, signal, sys, threading
import ding_lite.log
from ding_lite import Parallel, Task

logging.lastResort = logging.NullHandler()  # else a warning may look like a line of the program

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


class Program:
    """A running program; its output and its errors are one stream of lines.

    A thread reads them as they come: a program with a full pipe would wait for its reader.
    """

    def __init__(self, folder: Path, source: str, *command: str, stdin: str = "") -> None:
        (folder / "program.py").write_text(PREAMBLE + source)
        words = sys.executable, *(command or ("program.py",))
        self._start(folder, words, {"TMPDIR": str(folder)}, stdin)

    def _start(
        self, folder: Path, command: Sequence[str], variables: Mapping[str, str], stdin: str = ""
    ) -> None:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        self._read_lines(folder, process)
        assert process.stdin is not None
        with process.stdin as file:
            file.write(stdin)

    def _read_lines(self, folder: Path, process: subprocess.Popen[str] | Child) -> None:
        self.folder, self.process = folder, process
        self.seen = ""
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as file:
            for line in file:
                self._lines.put(line)
        self._lines.put(None)

    @property
    def pid(self) -> int:
        return self.process.pid

    def lines(self) -> Iterator[str]:
        """Yield the lines that have not been read yet, until the output ends."""
        while (line := self._lines.get()) is not None:
            self.seen += line
            yield line
        self._lines.put(None)  # it has ended for the next caller too

    def line(self, containing: str = "") -> list[str]:
        """Return the words of the next line that contains something."""
        for line in self.lines():
            if containing in line:
                return line.split()
        raise AssertionError(f"no line contains {containing!r}:\n{self.seen}")

    def pids(self, count: int) -> dict[int, int]:
        """Read as many lines `up <node> <pid>`."""
        found = [self.line("up ") for _ in range(count)]
        return {int(words[1]): int(words[2]) for words in found}

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and all the output."""
        for _ in self.lines():
            pass
        return self.process.wait(), self.seen

    def result(self) -> str:
        """Wait for the end without an error; return all the output."""
        code, output = self.end()
        assert code == 0, output
        return output

    def refusal(self) -> str:
        """Wait for the end by an error; return all the output."""
        code, output = self.end()
        assert code == 1, output
        return output

    def kill(self) -> None:
        """End the program and its group at once, and wait until it has ended."""
        os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def leaves_nothing(self, *pids: int) -> None:
        """Wait until these processes have ended; check that no file or segment is left."""
        wait_until_gone(*pids)
        assert self.left_over() == []
        assert segments(pids) == []

    def left_over(self) -> list[str]:
        """Name what the program has left in the directories where it may write."""
        return sorted(p.name for p in self.folder.iterdir() if p.name.startswith(("ding", "pymp")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Job(Program):
    """A program of `tests/programs`, and what it is given."""

    def __init__(self, folder: Path, name: str, **given: Any) -> None:
        super().__init__(folder, "", *command_of(name, **given))


class Forked(Program):
    """A program that is forked, with its fork server, from a process that has its imports.

    Its nodes, and what passes between all of them, are those of any other program.

    Args:
        warm: What forks it.
        folder: Where it runs.
        source: The text of the program, if it is in no file.
        command: The path of its file, and its arguments.
        variables: Environment variables.
        machine: A process in the network that it is to see; by default that of the test.
    """

    def __init__(
        self,
        warm: Warm,
        folder: Path,
        source: str,
        *command: str,
        variables: Mapping[str, str] | None = None,
        machine: int | None = None,
    ) -> None:
        script, *words = command or (str(folder / "program.py"),)
        if source:
            Path(script).write_text(PREAMBLE + source)
        environ = {"TMPDIR": str(folder), **(variables or {})}
        self._read_lines(
            folder,
            warm.start(Path(script), *words, folder=folder, variables=environ, machine=machine),
        )


def segments(pids: Iterable[int]) -> list[str]:
    """Name those of these processes; other jobs of the user may have some too."""
    return [path.name for pid in pids for path in DIRECTORY.glob(f"ding_lite-*-{pid}-*")]


def command_of(name: str, **given: Any) -> tuple[str, str]:
    """Return what stands behind `python` to start a program of `tests/programs`."""
    return str(PROGRAMS / f"{name}.py"), json.dumps(given)


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
    """Make a folder with a path short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="t-", dir=_base()) as path:
        yield Path(path)
