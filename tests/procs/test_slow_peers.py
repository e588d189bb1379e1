"""Nodes that cannot keep up: nothing is lost, and their senders need no more memory."""

from __future__ import annotations

import os
import signal
import tempfile
from ast import literal_eval
from collections import Counter
from pathlib import Path

import pytest

from ding_lite.parallel import Parallel
from ding_lite.parallel.launch import launch
from tests.procs import mains
from tests.procs.programs import Program, run

BURST = """
def main(num_events):
    heard = []
    with Task() as task:
        def hear(number, padding):
            heard.append(number)
            if len(heard) == num_events:
                task.finish = True
        def burst(ctx):
            for number in range(num_events):
                task.emit("n", number, b"x" * 50, only_remote=True)
            task.wait_for("nothing")
        task.on("n", hear)
        task.use(lambda ctx: task.wait_for("nothing"), "node.0").use(burst, "node.1").run()
    return heard == [*range(num_events)]

if __name__ == "__main__":
    print(Parallel.runner(2, protocol="{protocol}")(main, 100_000))
"""


@pytest.mark.parametrize("protocol", ["ipc", "tcp"])
def test_a_burst_of_100_000_events_arrives_whole_and_in_order(folder: Path, protocol: str) -> None:
    assert run(folder, BURST.format(protocol=protocol)) == (0, "[True, False]\n")


# -- a reader that stalls ------------------------------------------------------------------

STATE = """
import pathlib
import numpy as np
from contextlib import suppress
from ding_lite.errors import DeadlineExceeded

SIZE = {size} * 2**20
NUM_STEPS = 10

def memory():
    status = pathlib.Path("/proc/self/status").read_text().split()
    own = 1024 * int(status[status.index("RssAnon:") + 1])
    segments = pathlib.Path("/dev/shm").glob(f"ding_lite-*-{{os.getpid()}}-*")
    return own + sum(512 * file.stat().st_blocks for file in segments)

def main():
    node = Parallel().node_id
    state, used = np.zeros(SIZE // 8), []
    with Task() as task:
        def publish(ctx):
            number = min(ctx.total_step, NUM_STEPS)
            if ctx.total_step == NUM_STEPS:
                say("published")
            if ctx.total_step > NUM_STEPS:
                wait(1.0)
            state[:] = number
            ctx.state_dict, ctx.number = {{"w": state}}, number
            used.append(memory())
        def read(ctx):
            wait(0.02)
            latest = task.parallel_ctx.of(0)
            if latest.get("number", -1) > ctx.get("seen", -1):
                ctx.seen = latest.number
                ctx.keep("seen")
                say("read", latest.number, *np.unique(latest.state_dict["w"]))
                task.finish = latest.number == NUM_STEPS
        def wait(seconds):
            with suppress(DeadlineExceeded):
                task.wait_for("nothing", timeout=seconds)
        task.use(publish, "node.0").use(read, "node.1")
        say("up", node, os.getpid())
        if node == 0:
            pathlib.Path("go").read_text()
        task.share("state_dict", "number").run()
    return [round((now - used[0]) / SIZE, 1) for now in used]

if __name__ == "__main__":
    print(Parallel.runner(2, protocol="{protocol}")(main))
"""


@pytest.mark.deadline(60)
@pytest.mark.parametrize(("protocol", "size"), [("ipc", 200), ("tcp", 50)])
def test_a_stalled_reader_of_a_large_state_costs_a_few_copies_and_ends_with_the_newest(
    folder: Path, protocol: str, size: int
) -> None:
    os.mkfifo(folder / "go")
    with Program(folder, STATE.format(protocol=protocol, size=size)) as program:
        pid = program.pids(2)[1]
        os.kill(pid, signal.SIGSTOP)
        (folder / "go").write_text("")
        program.line("published")
        os.kill(pid, signal.SIGCONT)
        code, said = program.end()
        assert code == 0, said
        numbers = [line.split()[1:] for line in said.splitlines() if line.startswith("read")]
        assert numbers[-1] == ["10", "10.0"]
        assert all(float(seen) == int(number) for number, seen in numbers)
        copies = literal_eval(said.splitlines()[-1])[0]
        assert max(copies) < 5.0, copies


EVENTS = """
import pathlib
import numpy as np

NUM_EVENTS = 200
MEGABYTE = 2**20

def peak():
    status = pathlib.Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) / 1024

def main():
    node, heard = Parallel().node_id, []
    with Task() as task:
        def emit(ctx):
            task.router.on("node_lost", lambda peer: say("lost", node))
            for number in range(NUM_EVENTS):
                task.emit("n", number, np.full(MEGABYTE, number % 256, np.uint8), only_remote=True)
                if number in (50, NUM_EVENTS - 1):
                    say("emitted", number)
            task.wait_for("nothing")
        def hear(number, data):
            heard.append(number if (data == number % 256).all() else -1)
            task.finish = len(heard) == NUM_EVENTS
        task.on("n", hear)
        task.on("node_lost", lambda peer: None)
        task.use(emit, "node.0").use(lambda ctx: task.wait_for("nothing"), "node.1")
        say("up", node, os.getpid())
        if node == 0:
            pathlib.Path("go").read_text()
        before = peak()
        task.run()
    return peak() - before if node == 0 else heard == [*range(NUM_EVENTS)]

if __name__ == "__main__":
    print(Parallel.runner(2, protocol="{protocol}")(main))
"""


@pytest.mark.parametrize("protocol", ["ipc", "tcp"])
def test_events_wait_for_a_stalled_node_within_a_window_and_all_arrive(
    folder: Path, protocol: str
) -> None:
    os.mkfifo(folder / "go")
    with Program(folder, EVENTS.format(protocol=protocol)) as program:
        pid = program.pids(2)[1]
        os.kill(pid, signal.SIGSTOP)
        (folder / "go").write_text("")
        program.line("lost 0")  # by then all are emitted for which there is room
        assert "emitted 50\n" in program.seen
        assert "emitted 199\n" not in program.seen
        os.kill(pid, signal.SIGCONT)
        code, said = program.end()
        assert code == 0, said
        megabytes, all_heard = literal_eval(said.splitlines()[-1])
        assert all_heard
        assert megabytes < 150  # the window is 64; 200 were emitted


STREAM = """
from contextlib import suppress
from ding_lite.errors import DeadlineExceeded

NUM_ITEMS, NUM_KILLED = 400, 2

def main():
    node, taken = Parallel().node_id, []
    with Task() as task:
        def give(ctx):
            for number in range(NUM_ITEMS):
                task.send("items", {{"number": number}}, to="taker")
                if number in (50, 150):
                    say("given", number)
            task.wait_for("nothing")
        def take(ctx):
            item = task.receive("items", timeout=None)
            if item is not None:
                task.emit("took", item.value["number"])
                with suppress(DeadlineExceeded):
                    task.wait_for("nothing", timeout=0.005)
        def took(number):
            taken.append(number)
            # One that was killed may have taken an item and not have said so yet.
            task.finish = len({{*taken}}) >= NUM_ITEMS - NUM_KILLED
        if node == 0:
            task.on("took", took)
        task.use(give, "giver").use(take, "taker")
        say("up", node, os.getpid())
        task.run()
    return sorted(taken)

if __name__ == "__main__":
    roles = ["giver", "taker", "taker", "taker"]
    print(Parallel.runner(4, "star", roles=roles, auto_recover=True, protocol="{protocol}")(main))
"""


@pytest.mark.parametrize("protocol", ["ipc", "tcp"])
def test_items_of_takers_that_are_killed_are_taken_by_the_others(
    folder: Path, protocol: str
) -> None:
    with Program(folder, STREAM.format(protocol=protocol)) as program:
        pids = program.pids(4)
        for victim, number in ((1, 50), (2, 150)):
            program.line(f"given {number}")
            os.kill(pids[victim], signal.SIGKILL)
        code, said = program.end()
        assert code == 0, said
        taken = Counter(literal_eval(said.splitlines()[-1])[0])
        assert {*taken} <= {*range(400)}
        # Or it may have said that it took an item, and not yet have told the giver.
        assert sum(count - 1 for count in taken.values()) <= 2


def test_jobs_in_a_row_leave_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check for descriptors, threads, processes and segments comes after each test."""
    monkeypatch.setattr(launch, "slow_to_import", tuple)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for number in range(5):
        protocol = ("ipc", "tcp")[number % 2]
        results = Parallel.runner(2, protocol=protocol)(mains.arguments, number)
        assert [result[2] for result in results] == [(number,)] * 2
        assert not list(folder.iterdir())
