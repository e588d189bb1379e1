"""Shared memory of jobs that are killed: nothing of it is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from ding_lite.parallel.memory.segments import DIRECTORY, domain
from tests.procs.programs import Program, wait_until_gone

pytestmark = pytest.mark.skipif(not domain(), reason="no memory to share on this platform")

PROGRAM = """
import numpy as np

def main():
    node = Parallel().node_id
    def step(ctx):
        ctx.state_dict = np.full(100_000, ctx.total_step)
        if ctx.total_step == 1:
            task.wait_parallel_ctx()
            say("up", node, os.getpid())
        if {stubborn} and ctx.total_step == 5:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
            say("stuck")
            threading.Event().wait()
    with Task() as task:
        task.use(step).run()

if __name__ == "__main__":
    Parallel.runner(2)(main)
"""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def segments(pids: Iterable[int]) -> list[str]:
    """Name those of these processes; other jobs of the user may have some too."""
    return [path.name for pid in pids for path in DIRECTORY.glob(f"ding_lite-*-{pid}-*")]


@pytest.mark.parametrize("victim", ["launcher", 0, 1])
def test_a_job_that_is_killed_leaves_no_segment(folder: Path, victim: str | int) -> None:
    with Program(folder, PROGRAM.format(stubborn=False)) as program:
        pids = program.pids(2)
        assert len(segments(pids.values())) == 2
        os.kill(program.pid if victim == "launcher" else pids[int(victim)], signal.SIGKILL)
        program.end()
        wait_until_gone(*pids.values())
        assert program.left_over() == []
    assert segments(pids.values()) == []


def test_a_job_leaves_no_segment_when_its_fork_server_is_killed(folder: Path) -> None:
    with Program(folder, PROGRAM.format(stubborn=False)) as program:
        pids = program.pids(2)
        os.kill(parent_of(pids[0]), signal.SIGKILL)
        assert program.end()[0] == 1
        wait_until_gone(*pids.values())
    assert segments(pids.values()) == []


def test_a_job_leaves_no_segment_when_its_launcher_and_fork_server_are_killed(folder: Path) -> None:
    with Program(folder, PROGRAM.format(stubborn=True)) as program:
        pids = program.pids(2)
        fork_server = parent_of(pids[0])
        os.kill(fork_server, signal.SIGSTOP)  # so that it cannot do its duty in between
        program.process.kill()
        os.kill(fork_server, signal.SIGKILL)
        wait_until_gone(*pids.values())
        program.end()
        assert program.left_over() == []
    assert segments(pids.values()) == []


def test_nodes_that_must_be_killed_leave_no_segment_either(folder: Path) -> None:
    with Program(folder, PROGRAM.format(stubborn=True)) as program:
        pids = program.pids(2)
        program.line("stuck")
        program.process.kill()
        program.end()
        wait_until_gone(*pids.values())
    assert segments(pids.values()) == []
