"""A small job of the usual kind, and what ends its processes at a moment that they name.

A learner, an evaluator that ends the job, a collector. The program says where it is, and a test
kills a process as soon as it hears of that. No process waits to be killed, so the moment is never
quite the same.
"""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic

from tests.procs.programs import Program

ROLES = ["learner", "evaluator", "collector"]
STAGES = ["import", "main", "step-5", "finish", "return"]
MAX_FAIL_S = 10.0
"""How long the launcher may take to raise."""
MAX_END_S = 20.0
"""How long the end of a job may take that has failed; machines are slow."""


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
        self.program.leaves_nothing(*self.all_pids)
        return code, output.splitlines()[-1]


@contextmanager
def running(
    start: Callable[..., Program],
    *,
    recover: bool,
    protocol: str,
    topology: str = "star",
    jumps: bool = False,
) -> Iterator[Run]:
    """Run the program by `Job` or a fork."""
    runner = {"topology": topology, "protocol": protocol, "auto_recover": recover}
    with start("three_roles", runner=runner, jumps=jumps) as program:
        yield Run(program)


def others(role: str) -> list[str]:
    return [other for other in ROLES if other != role]


@dataclass(frozen=True, kw_only=True)
class Round:
    """The job, victim and moment of one kill."""

    topology: str = "star"
    protocol: str
    recover: bool
    victim: str
    signum: signal.Signals = signal.SIGKILL
    role: str
    """The node that is to come to the stage."""
    stage: str
    delay_s: float = 0.0

    @property
    def is_ending(self) -> bool:
        return self.stage in ("finish", "return", "exit")

    @property
    def is_harmless(self) -> bool:
        return (self.victim, self.signum) == ("fork_server", signal.SIGTERM)

    def __str__(self) -> str:
        recover = "restarts" if self.recover else "none"
        kill = f"{self.signum.name}-{self.victim}-{self.role}-{self.stage}-{self.delay_s:.3f}"
        return f"{self.topology}-{self.protocol}-{recover}-{kill}"

    def play(self, start: Callable[..., Program]) -> None:
        """Run the job, and check that it ends right, or fails at once and leaves nothing."""
        protocol, topology = self.protocol, self.topology
        with running(start, recover=self.recover, protocol=protocol, topology=topology) as run:
            if self.is_ending:
                run.may_end()
            run.follow(self.role, self.stage, self.victim)
            select.select([], [], [], self.delay_s)
            killed_at = run.kill(self.victim, self.signum)
            comes_back = self.victim in ROLES and self.recover
            if comes_back and not self.is_ending:
                run.wait_for_return(self.victim)
            if self.is_harmless or (comes_back and not self.is_ending):
                run.may_end()
            code, results = run.end()  # which looks for processes, sockets, segments
            assert monotonic() - killed_at < MAX_END_S or comes_back or self.is_harmless
            self._check_end(run, killed_at, code, results)

    def _check_end(self, run: Run, killed_at: float, code: int, results: str) -> None:
        output = run.program.seen
        everything = (0, "[True, True, True]")
        if self.is_harmless:
            assert (code, results) == everything, output
            assert [line for line in output.splitlines()[:-1] if not line.startswith("at ")] == []
        elif self.is_ending and (code, results) == everything:
            return  # it had ended
        elif self.victim == "launcher":
            # Behind the runner, as the program ends, SIGTERM does what it does to any program.
            in_order = {143, -signal.SIGTERM} if self.is_ending else {143}
            assert code in ({-signal.SIGKILL} if self.signum == signal.SIGKILL else in_order), (
                output
            )
        elif self.victim in ROLES and self.recover:
            assert code == 0, output
            # Where the job was ending already, the victim may have no result.
            allowed = {"True", "None"} if self.stage in ("finish", "return") else {"True"}
            assert {*results.strip("[]").split(", ")} <= allowed, output
            assert results.count("True") >= 2, output
        else:
            assert code == 1, output
            assert f"NodeFailed: {self._loss(run)}" in output, output
            # Not at the begin of a line: another process may have written half of one.
            [failed_at] = re.findall(r"failed (\d+\.\d+)", output)
            assert float(failed_at) - killed_at < MAX_FAIL_S, output

    def _loss(self, run: Run) -> str:
        if self.victim == "fork_server":
            return "The fork server, the parent of the nodes, has died"
        node, pid = ROLES.index(self.victim), run.pids[self.victim]
        if self.signum == signal.SIGKILL:
            return f"Node {node} (process {pid}) was killed by SIGKILL"
        return f"Node {node} "
