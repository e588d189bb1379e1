"""Eight nodes in a mesh on this machine: start, exchange events, end; and what an idle one takes.

Each program is run afresh, as a user would. The baseline of the exchange is bare ZeroMQ between
the same number of processes, which the standard library starts; nothing there is numbered,
acknowledged or supervised. The baseline of the memory is an idle process with the same imports:
one that the standard library's fork server has made, with the same modules preloaded, for a node
is such a process too; and a fresh interpreter, which is what most programs start.
"""

from __future__ import annotations

import json

from tests.bench.harness import Row, row_from_samples, run_program

REPEATS = 5

EXCHANGE = """
import json, threading, time
from ding_lite import Parallel

NODES, EVENTS = 8, 1_000
EXPECTED = (NODES - 1) * EVENTS

def main():
    began = time.monotonic()
    router, seen, all_here = Parallel(), [], threading.Event()

    def listen(body):
        seen.append(body)
        if len(seen) == EXPECTED:
            all_here.set()

    router.on("event", listen)
    for _ in range(EVENTS):
        router.emit("event", bytes(100))
    all_here.wait()
    return began, time.monotonic(), len(seen)

if __name__ == "__main__":
    called = time.monotonic()
    results = Parallel.runner(NODES, "mesh")(main)
    returned = time.monotonic()
    assert [count for _, _, count in results] == [EXPECTED] * NODES
    begins, ends, _ = zip(*results)
    print(json.dumps({
        "start": max(begins) - called,
        "exchange": max(ends) - max(begins),
        "end": returned - max(ends),
        "all": returned - called,
    }))
"""
BARE_EXCHANGE = """
import json, multiprocessing, tempfile, time
import zmq

NODES, EVENTS = 8, 1_000
EXPECTED = (NODES - 1) * EVENTS

def main(me, directory, results):
    context = zmq.Context()
    inbox = context.socket(zmq.PULL)
    inbox.rcvhwm = 0
    inbox.bind(f"ipc://{directory}/{me}")
    peers = []
    for peer in range(NODES):
        if peer != me:
            socket = context.socket(zmq.PUSH)
            socket.sndhwm = 0
            socket.connect(f"ipc://{directory}/{peer}")
            peers.append(socket)
    for _ in range(EVENTS):
        for socket in peers:
            socket.send(bytes(100))
    for _ in range(EXPECTED):
        inbox.recv()
    results.put(EXPECTED)
    context.destroy()

if __name__ == "__main__":
    called = time.monotonic()
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["zmq"])
    results = server.SimpleQueue()
    with tempfile.TemporaryDirectory() as directory:
        nodes = [server.Process(target=main, args=(k, directory, results)) for k in range(NODES)]
        for node in nodes:
            node.start()
        assert [results.get() for _ in nodes] == [EXPECTED] * NODES
        for node in nodes:
            node.join()
    print(json.dumps({"all": time.monotonic() - called}))
"""

MEMORY = """
import json, sys
import gymnasium, torch
from pathlib import Path

def megabytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1e3 * 1.024 for line in lines}
    return sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Pss"]
"""
OUR_MEMORY = (
    MEMORY
    + """
from ding_lite import Parallel
from ding_lite.parallel.router.group import World

def main():
    everybody = World.current().group("*")
    everybody.barrier()
    found = megabytes()
    everybody.barrier()
    return found

if __name__ == "__main__":
    print(json.dumps(Parallel.runner(8, "mesh")(main)))
"""
)
BARE_MEMORY = (
    MEMORY
    + """
import multiprocessing

def main(barrier, results):
    barrier.wait()
    found = megabytes()
    barrier.wait()
    results.put(found)

if __name__ == "__main__":
    method = multiprocessing.get_context(sys.argv[1])
    if sys.argv[1] == "forkserver":
        method.set_forkserver_preload(["torch", "gymnasium"])
    barrier, results = method.Barrier(8), method.SimpleQueue()
    nodes = [method.Process(target=main, args=(barrier, results)) for _ in range(8)]
    for node in nodes:
        node.start()
    print(json.dumps([results.get() for _ in nodes]))
    for node in nodes:
        node.join()
"""
)


def run() -> list[Row]:
    return [*exchange(), *memory()]


def exchange() -> list[Row]:
    """Time 8 nodes, each of which emits 1,000 events to the 7 others and waits for theirs."""
    ours, theirs = [], []
    for _ in range(REPEATS):
        theirs.append(json.loads(run_program(BARE_EXCHANGE)))
        ours.append(json.loads(run_program(EXCHANGE)))
    name = "8 nodes in a mesh, 1,000 events of 100 B from each to all"
    whole = row_from_samples(
        f"{name}: call to result",
        [numbers["all"] for numbers in ours],
        baseline=[numbers["all"] for numbers in theirs],
        baseline_name="8 processes of a fork server, bare PUSH and PULL",
        unit="s",
        tracked=True,
    )
    parts = ("start", "exchange", "end")
    return [whole] + [
        row_from_samples(f"{name}: {part}", [numbers[part] for numbers in ours], unit="s")
        for part in parts
    ]


def memory() -> list[Row]:
    ours, forked, fresh = [], [], []
    for _ in range(REPEATS):
        forked.append(json.loads(run_program(BARE_MEMORY, "forkserver")))
        fresh.append(json.loads(run_program(BARE_MEMORY, "spawn")))
        ours.append(json.loads(run_program(OUR_MEMORY)))
    own, own_forked = ([mean(run, 0) for run in runs] for runs in (ours, forked))
    share, share_fresh = ([mean(run, 1) for run in runs] for runs in (ours, fresh))
    return [
        row_from_samples(
            "idle node of 8 with torch and gymnasium: memory of its own beyond a bare process's",
            [a - b for a, b in zip(own, own_forked, strict=True)],
            unit="MB",
            target=40.0,
            tracked=True,
        ),
        row_from_samples(
            "idle node of 8 with torch and gymnasium: memory with its share of what is shared",
            share,
            baseline=share_fresh,
            baseline_name="fresh interpreter with the same imports",
            unit="MB",
            target=1.0,
        ),
    ]


def mean(processes: list[list[float]], column: int) -> float:
    return sum(process[column] for process in processes) / len(processes)
