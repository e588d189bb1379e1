"""Each node killed in turn, at each stage of its life: with `auto_recover` the run ends right."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.procs.programs import Program, wait_until_gone

PROGRAM = """
import atexit, multiprocessing, pathlib

def wait_to_be_killed(stage):
    mark = pathlib.Path("killed")
    name = multiprocessing.current_process().name
    if (name, stage) == ("node {victim}", "{stage}") and not mark.exists():
        mark.touch()
        say("up", {victim}, os.getpid())
        threading.Event().wait()

wait_to_be_killed("import")

def main():
    node = Parallel().node_id
    atexit.register(wait_to_be_killed, "exit")
    def step(ctx):
        if ctx.total_step == 2:
            wait_to_be_killed("middle")
        if node == {victim} and ctx.total_step == 5:
            ctx.finish = True
    with Task() as task:
        task.use(step).run()
    wait_to_be_killed("return")
    return node, task.ctx.finish

if __name__ == "__main__":
    print(Parallel.runner(3, auto_recover={recover})(main))
"""


@pytest.mark.parametrize("stage", ["import", "middle", "return", "exit"])
@pytest.mark.parametrize("victim", [0, 1])
def test_with_auto_recover_the_run_ends_right(folder: Path, victim: int, stage: str) -> None:
    source = PROGRAM.format(victim=victim, stage=stage, recover=True)
    with Program(folder, source) as program:
        os.kill(program.pids(1)[victim], signal.SIGKILL)
        assert program.end() == (0, program.seen)
        results = program.seen.splitlines()[-1]
        # While the job ends a node is not started again: it would find no peer left.
        num_sure = 2 if stage == "return" else 3
        assert results.count("True") >= num_sure, program.seen
        assert program.left_over() == []


@pytest.mark.parametrize("stage", ["import", "middle", "return"])
def test_without_auto_recover_the_run_fails_and_leaves_nothing(folder: Path, stage: str) -> None:
    source = PROGRAM.format(victim=1, stage=stage, recover=False)
    with Program(folder, source) as program:
        pids = program.pids(1)
        os.kill(pids[1], signal.SIGKILL)
        assert program.end()[0] == 1
        assert f"Node 1 (process {pids[1]}) was killed by SIGKILL" in program.seen
        wait_until_gone(*pids.values())
        assert program.left_over() == []
