"""The time to start a job, and to end one that has failed.

Wall clock, in programs of their own: what a user waits for. The baseline is what Python has for
the same: a fresh interpreter a process, each of which imports torch.
"""

from __future__ import annotations

import json

from tests.bench.harness import Row, row_from_samples, run_program

REPEATS = 5
OURS = """
import json, os, signal, time
import gymnasium, torch
from ding_lite import Parallel
from ding_lite.errors import NodeFailed

def main():
    env = gymnasium.make("CartPole-v1")
    env.reset()
    return float(torch.ones(2, 2).sum())

def die():
    if Parallel().node_id == 3:
        began = time.monotonic()
        print(json.dumps({"crash": began}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()

if __name__ == "__main__":
    began = time.monotonic()
    assert Parallel.runner(4)(main) == [4.0] * 4
    print(json.dumps({"start": time.monotonic() - began}), flush=True)
    try:
        Parallel.runner(4)(die)
    except NodeFailed:
        print(json.dumps({"raised": time.monotonic()}), flush=True)
"""
THEIRS = """
import json, multiprocessing, time
import gymnasium, torch

def main(queue):
    env = gymnasium.make("CartPole-v1")
    env.reset()
    queue.put(float(torch.ones(2, 2).sum()))

if __name__ == "__main__":
    began = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.SimpleQueue()
    processes = [spawn.Process(target=main, args=(queue,)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [queue.get() for _ in processes] == [4.0] * 4
    for process in processes:
        process.join()
    print(json.dumps({"start": time.monotonic() - began}), flush=True)
"""


def run() -> list[Row]:
    ours, theirs = [], []
    for _ in range(REPEATS):
        theirs.append(report(THEIRS))
        ours.append(report(OURS))
    starts = [numbers["start"] for numbers in ours]
    return [
        row_from_samples(
            "Parallel.runner(4) on an empty main that uses torch and gymnasium, call to result",
            starts,
            unit="s",
            target=3.0,
            tracked=True,
        ),
        row_from_samples(
            "Parallel.runner(4) beside bare processes",
            starts,
            baseline=[numbers["start"] for numbers in theirs],
            baseline_name="multiprocessing spawn of 4",
            unit="s",
        ),
        row_from_samples(
            "kill -9 of one of 4 nodes to NodeFailed",
            [numbers["raised"] - numbers["crash"] for numbers in ours],
            unit="s",
            target=2.0,
            tracked=True,
        ),
    ]


def report(source: str) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for line in run_program(source).splitlines():
        numbers |= json.loads(line)
    return numbers
