"""The cost of a stalled reader for the node that publishes: time in each step, and memory.

A step works for some ten milliseconds and publishes a new state of 10 MB. The baseline is the
same step where the reader keeps up: it has loaded each state before the next step begins, so
that it takes no processor time from the step. Beside it the reader is stopped (SIGSTOP), or
takes a tenth of a second for each state. Over ipc the state lies in shared memory, over tcp it
is encrypted. Memory is what the process has in all, with what it shares; each sample is taken in
a fresh process, for memory that was once taken is kept.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from statistics import fmean
from time import monotonic

from ding_lite.io.memory import process_bytes
from ding_lite.parallel.router.node_router import NodeRouter
from tests.bench.bench_state import MEGABYTE, Readers, job, state_of
from tests.bench.harness import ROOT, Row, row_from_samples

MEGABYTES = 10
ROUNDS = 9
STEPS = 20
"""Steps of a sample; of a stopped reader they must end before it counts as lost."""
WARM_UP = 10
WORK = 120_000
DAWDLE_S = 0.1
FRESH = 5


def run() -> list[Row]:
    rows = []
    for protocol in ("ipc", "tcp"):
        with job(num_readers=1, protocol=protocol) as (router, readers):
            rows += time_of_steps(protocol, Publisher(router, readers))
        rows.append(memory(protocol))
    return rows


def time_of_steps(protocol: str, publisher: Publisher) -> list[Row]:
    """Take turns between the three readers."""
    publisher.steps(WARM_UP, keeps_up=True)
    with publisher.stopped_reader():
        publisher.steps(WARM_UP)
    kept_up, stopped, dawdled = [], [], []
    for _ in range(ROUNDS):
        kept_up.append(publisher.steps(STEPS, keeps_up=True))
        with publisher.stopped_reader():
            stopped.append(publisher.steps(STEPS))
        with publisher.dawdling_reader():
            dawdled.append(publisher.steps(STEPS))
    return [
        row_from_samples(
            f"step with a new state of {MEGABYTES} MB over {protocol}, the reader is {how}",
            samples,
            baseline=kept_up,
            baseline_name="the reader keeps up",
            unit="ms",
            target=1.1,
        )
        for how, samples in (("stopped", stopped), ("slow", dawdled))
    ]


def memory(protocol: str) -> Row:
    """Ask fresh publishers how much they grow while their reader is stopped."""
    code = "import sys; from tests.bench.bench_stalled import print_growth as run; "
    command = [sys.executable, "-c", code + "run(sys.argv[1])", protocol]
    grown = [
        float(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
        for _ in range(FRESH)
    ]
    return row_from_samples(
        f"publisher of {MEGABYTES} MB over {protocol}: memory for a stopped reader",
        grown,
        baseline=[float(MEGABYTES)] * FRESH,
        baseline_name="one state",
        unit="MB",
        target=1.1,
    )


def print_growth(protocol: str) -> None:
    with job(num_readers=1, protocol=protocol) as (router, readers):
        publisher = Publisher(router, readers)
        publisher.steps(STEPS, keeps_up=True)
        before = process_bytes()
        with publisher.stopped_reader():
            publisher.steps(STEPS)
            grown = process_bytes() - before
    print(grown / MEGABYTE)


class Publisher:
    """Works and publishes, step by step."""

    def __init__(self, router: NodeRouter, readers: Readers) -> None:
        self._router = router
        self._readers = readers
        self._state = state_of(MEGABYTES)
        self._numbers = count(1)
        self._newest = 0

    def steps(self, num_steps: int, *, keeps_up: bool = False) -> float:
        """Return the seconds of a step; wait for the reader in between if it is to keep up."""
        samples = []
        for _ in range(num_steps):
            self._newest = next(self._numbers)
            started = monotonic()
            work()
            self._router.publish_ctx({"number": self._newest, "state": self._state})
            samples.append(monotonic() - started)
            if keeps_up:
                self._readers.wait(self._newest)
        return fmean(samples)

    @contextmanager
    def stopped_reader(self) -> Iterator[None]:
        [pid] = self._readers.pids
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
        self._readers.wait(self._newest)

    @contextmanager
    def dawdling_reader(self) -> Iterator[None]:
        self._router.emit("dawdle", DAWDLE_S)
        yield
        self._router.emit("dawdle", 0.0)
        self._readers.wait(self._newest)


def work() -> float:
    """Keep one processor busy with Python, as a step does."""
    total = 0.0
    for number in range(WORK):
        total += number * 0.5
    return total
