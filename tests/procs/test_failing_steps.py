"""Async mode on nodes that are processes: an error beside a middleware that waits ends the job."""

from __future__ import annotations

from tests.procs.programs import Program, run

PROGRAM = """
from ding_lite.distributed import World

RECOVERS = "recover" in sys.argv

def main():
    with Task(async_mode=True) as task:
        node, begins = task.router.node_id, threading.Event()

        def wait(ctx):
            begins.set()
            if not RECOVERS:
                World.current().group([0, 1]).barrier(timeout=None)
            elif node == 0:
                task.wait_for("never")

        def bad(ctx):
            if node == 0:
                begins.wait()
                if RECOVERS and os.path.exists("failed"):
                    task.emit("failed before")
                    ctx.finish = True
                    return
                open("failed", "w").close()
                raise ZeroDivisionError("beside a wait")
            if RECOVERS:
                task.wait_for("failed before")

        task.use(wait).use(bad).run()
    return os.path.exists("failed")

if __name__ == "__main__":
    print(Parallel.runner(2, auto_recover=RECOVERS)(main))
"""


def test_the_job_ends_with_the_error_also_where_the_other_node_waits(folder) -> None:
    with Program(folder, PROGRAM) as program:
        code, said = program.end()
        assert code == 1
        assert program.left_over() == []
    assert "NodeFailed: Node 0 failed while running `main`: ZeroDivisionError: beside a wa" in said
    assert "in middleware `bad`, step 0, node 0" in said


def test_with_auto_recover_the_node_is_restarted_and_the_job_ends_in_order(folder) -> None:
    code, said = run(folder, PROGRAM, "program.py", "recover")
    assert (code, said.splitlines()[-1]) == (0, "[True, True]"), said
