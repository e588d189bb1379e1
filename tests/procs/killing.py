"""A small job of the usual kind, and what ends its processes at a moment that they name.

A learner, an evaluator that ends the job, a collector. The program says where it is, and a test
kills a process as soon as it hears of that. No process waits to be killed, so the moment is never
quite the same.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from ding_lite.parallel.memory.segments import DIRECTORY
from tests.procs.programs import Program, wait_until_gone

ROLES = ["learner", "evaluator", "collector"]
STAGES = ["import", "main", "step-5", "finish", "return"]


class Run:
    """The program, and what is known of its processes."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.pids = {"launcher": program.pid}
        self.all_pids: set[int] = set()

    def follow(self, role: str, stage: str, victim: str) -> None:
        """Read on until a node has come so far, and the victim has begun."""
        is_there = False
        while not (is_there and victim in self.pids):
            _, who, where, pid, parent = self.program.line("at ")
            self.pids |= {who: int(pid), "fork_server": int(parent)}
            is_there = is_there or (who, where) == (role, stage)

    def kill(self, victim: str, signum: int = signal.SIGKILL) -> float:
        """Kill a process, which may just have ended; return when."""
        with suppress(ProcessLookupError):
            os.kill(self.pids[victim], signum)
        return monotonic()

    def wait_for_return(self, *victims: str) -> None:
        """Read on until all of them are back, each in another process."""
        dead = {self.pids[victim] for victim in victims}
        while dead & {self.pids[victim] for victim in victims}:
            _, who, where, pid, _ = self.program.line("at ")
            if where == "main" and int(pid) not in dead:
                self.pids[who] = int(pid)

    def may_end(self) -> None:
        (self.program.folder / "go").touch()

    def end(self) -> tuple[int, str]:
        """Wait for the end of all processes; return the exit code and the last line."""
        code, output = self.program.end()
        for line in output.splitlines():
            if line.startswith("at "):
                self.all_pids |= {int(pid) for pid in line.split()[3:]}
        wait_until_gone(*self.all_pids)
        assert self.program.left_over() == []
        assert segments(self.all_pids) == []
        return code, output.splitlines()[-1]


@contextmanager
def running(
    start: Callable[..., Program],
    *,
    recover: bool,
    number: int = 0,
    topology: str = "star",
    protocol: str = "",
    jumps: bool = False,
) -> Iterator[Run]:
    """Run the program by `Job` or a fork; every other time over tcp if no protocol is given."""
    protocol = protocol or ("ipc", "tcp")[number % 2]
    runner = {"topology": topology, "protocol": protocol, "auto_recover": recover}
    with start("three_roles", runner=runner, jumps=jumps) as program:
        yield Run(program)


def segments(pids: Iterable[int]) -> list[str]:
    """Name those of these processes; other jobs of the user may have some too."""
    return [path.name for pid in pids for path in DIRECTORY.glob(f"ding_lite-*-{pid}-*")]


def others(role: str) -> list[str]:
    return [other for other in ROLES if other != role]
