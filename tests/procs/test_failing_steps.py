"""Async mode on nodes that are processes: an error beside a middleware that waits ends the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.procs.programs import Program, run

PROGRAM = """
import threading
from concurrent.futures import Future
from ding_lite.distributed import World

def wait_for(task, ctx):
    task.wait_for("never")

def wait_parallel_ctx(task, ctx):
    task.wait_parallel_ctx(newer_than={"never": 1})

def receive(task, ctx):
    task.receive("never", timeout=None)

def send(task, ctx):
    while task.send("never taken", 1, to="node.1", timeout=None):
        pass

def loop(task, ctx):
    while not ctx.finish:
        threading.Event().wait(0.001)

def call(task, ctx):
    task.router.call(1, "slow", timeout=None)

def barrier(task, ctx):
    World.current().group([0, 1]).barrier(timeout=None)

def main(waiting, recovers):
    with Task(async_mode=True) as task:
        task.router.register("slow", Future)
        begins = threading.Event()

        def wait(ctx):
            begins.set()
            if task.router.node_id == 0 or not recovers:
                waiting(task, ctx)

        def bad(ctx):
            if task.router.node_id == 0:
                begins.wait()
                if recovers and os.path.exists("failed"):
                    task.emit("failed before")
                    ctx.finish = True
                    return
                open("failed", "w").close()
                raise ZeroDivisionError("beside a wait")
            if recovers:
                task.wait_for("failed before")

        task.use(wait).use(bad).run()
    return os.path.exists("failed")

if __name__ == "__main__":
    recovers = sys.argv[2:] == ["recover"]
    print(Parallel.runner(2, auto_recover=recovers)(main, globals()[sys.argv[1]], recovers))
"""

WAITS = ["wait_for", "receive", "loop", "barrier"]


@pytest.mark.parametrize("waiting", WAITS)
def test_the_job_ends_with_the_error_also_where_the_other_node_waits(
    folder: Path, waiting: str
) -> None:
    with Program(folder, PROGRAM, "program.py", waiting) as program:
        code, said = program.end()
        assert code == 1
        assert program.left_over() == []
    assert "NodeFailed: Node 0 failed while running `main`: ZeroDivisionError: beside a wa" in said
    assert "in middleware `bad`, step 0, node 0" in said


def test_with_auto_recover_the_node_is_restarted_and_the_job_ends_in_order(folder: Path) -> None:
    code, said = run(folder, PROGRAM, "program.py", "wait_for", "recover")
    assert (code, said.splitlines()[-1]) == (0, "[True, True]"), said
