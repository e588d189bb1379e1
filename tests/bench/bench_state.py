"""The cost of sending a large state to another process, beside bare copies of its size.

The other node is a process of its own, connected over ipc. It copies what arrives into arrays
that it has had all along, as a policy does with new weights, and says when it has done so (the
monotonic clock is the same in all processes of a machine). The baselines run in this process, in
turn with the candidates.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import monotonic, thread_time
from typing import Any

import numpy as np

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.parallel.network.security import make_key
from ding_lite.parallel.router.node_router import NodeRouter
from tests.bench.harness import ROOT, Row, row_from_samples
from tests.parallel.tcp import hub_spec, leaf_spec

NUM_ARRAYS = 20
REPEATS = {10: 101, 100: 21}
WARM_UP = 10
"""Until slots and memory are in use a second time; before that the kernel clears pages."""
MEGABYTE = 10**6


def run() -> list[Row]:
    rows = []
    for megabytes in (10, 100):
        with job(num_readers=1) as (router, readers):
            rows.append(publish_to_loaded(router, readers, megabytes))
            rows.append(publisher_busy(router, readers, megabytes))
            if megabytes == 10:
                rows.append(tiny(router))
        with job(num_readers=3) as (router, readers):
            rows.append(publisher_busy(router, readers, megabytes))
    return rows


def publish_to_loaded(router: NodeRouter, readers: Readers, megabytes: int) -> Row:
    """Publish; the reader says when the state was in its own arrays."""
    state, between, target = (state_of(megabytes) for _ in range(3))
    ours, theirs = [], []
    for number in range(1, REPEATS[megabytes] + WARM_UP + 1):
        started = monotonic()
        router.publish_ctx({"number": number, "state": state})
        ours.append(readers.wait(number) - started)

        started = monotonic()
        copy(state, between)
        copy(between, target)
        theirs.append(monotonic() - started)
    return row_from_samples(
        f"state of {megabytes} MB: publish, until it is in the reader's own arrays",
        ours[WARM_UP:],
        baseline=theirs[WARM_UP:],
        baseline_name="two warm copies",
        unit="ms",
        target=2.5,
        tracked=True,
    )


def publisher_busy(router: NodeRouter, readers: Readers, megabytes: int) -> Row:
    """Count the processor time of `publish_ctx`; the readers copy while it goes on."""
    state, target = state_of(megabytes), state_of(megabytes)
    ours, theirs = [], []
    first = 10**6
    for number in range(first, first + REPEATS[megabytes] + WARM_UP):
        started = thread_time()
        router.publish_ctx({"number": number, "state": state})
        ours.append(thread_time() - started)
        readers.wait(number)

        started = thread_time()
        copy(state, target)
        theirs.append(thread_time() - started)
    plural = "reader" if readers.count == 1 else "readers"
    return row_from_samples(
        f"state of {megabytes} MB: publisher is busy, {readers.count} {plural}",
        ours[WARM_UP:],
        baseline=theirs[WARM_UP:],
        baseline_name="one warm copy",
        unit="ms",
        target=1.5,
    )


def tiny(router: NodeRouter) -> Row:
    """Publish what a step without new weights puts on the ctx."""
    samples = []
    for turn in range(41):
        started = monotonic()
        for number in range(100):
            router.publish_ctx({"train_iter": number, "env_step": turn, "loss": 0.5})
        samples.append((monotonic() - started) / 100)
    return row_from_samples("tiny ctx: publish", samples, unit="us", target=40.0, tracked=True)


def copy(source: dict[str, np.ndarray], target: dict[str, np.ndarray]) -> None:
    for one, other in zip(source.values(), target.values(), strict=True):
        np.copyto(other, one)


def state_of(megabytes: int) -> dict[str, np.ndarray]:
    size = megabytes * MEGABYTE // NUM_ARRAYS // 4
    return {f"layer {k}": np.full(size, k, np.float32) for k in range(NUM_ARRAYS)}


# -- the other processes -------------------------------------------------------------------


class Readers:
    """Knows what the other nodes have loaded."""

    def __init__(self, router: NodeRouter, pids: list[int]) -> None:
        self.pids = pids
        self.count = len(pids)
        self._loaded = dict.fromkeys(range(1, self.count + 1), (0, 0.0))
        self._changed = threading.Condition()
        router.join(self)

    def receive_event(self, node_id: int, event: str, args: tuple[Any, ...], kwargs: Any) -> None:
        with self._changed:
            if event == "loaded":
                self._loaded[node_id] = args[0], args[1]
                self._changed.notify_all()

    def receive_ctx(self, node_id: int, values: Any) -> None:
        """Readers publish nothing."""

    def wait(self, number: int) -> float:
        """Block until all have loaded a state; return when the last one had."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._have_loaded(number), 30.0):
                raise TimeoutError(f"State {number} has not arrived: {self._loaded}.")
            return max(at for _, at in self._loaded.values())

    def _have_loaded(self, number: int) -> bool:
        return all(loaded == number for loaded, _ in self._loaded.values())


class Loader:
    """Copies what arrives into arrays of its own."""

    def __init__(self, router: NodeRouter) -> None:
        self._router = router
        self._own: dict[str, np.ndarray] = {}
        self._dawdle_s = 0.0
        self.has_ended = threading.Event()
        router.join(self)

    def receive_event(self, node_id: int, event: str, args: tuple[Any, ...], kwargs: Any) -> None:
        if event == "dawdle":
            [self._dawdle_s] = args
        elif event in ("end", "node_lost"):
            self.has_ended.set()

    def receive_ctx(self, node_id: int, values: Any) -> None:
        if self._dawdle_s:
            SYSTEM_CLOCK.sleep(self._dawdle_s)
        for name, array in values.get("state", {}).items():
            own = self._own.get(name)
            if own is None or own.shape != array.shape:
                own = self._own[name] = np.zeros_like(array)
            np.copyto(own, array)
        if "state" in values:
            self._router.emit("loaded", values["number"], monotonic())


def be_a_reader(address: str, key_file: str, node_id: int, num_nodes: int) -> None:
    spec = leaf_spec(node_id, address, num_nodes, key_file=key_file)
    with closing(NodeRouter(spec)) as router:
        Loader(router).has_ended.wait()


@contextmanager
def job(*, num_readers: int, protocol: str = "ipc") -> Iterator[tuple[NodeRouter, Readers]]:
    """Start a publisher here and its readers elsewhere."""
    code = "import sys; from tests.bench.bench_state import be_a_reader as run; "
    code += "run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))"
    num_nodes = num_readers + 1
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        key_file = str(make_key(Path(directory) / "key"))
        listen = f"ipc://{directory}/hub" if protocol == "ipc" else "tcp://127.0.0.1:0"
        spec = hub_spec(num_nodes, listen=listen, key_file=key_file)
        router = stack.enter_context(closing(NodeRouter(spec)))
        children = []
        for node in range(1, num_nodes):
            command = [sys.executable, "-c", code, str(router.address), key_file]
            child = subprocess.Popen([*command, str(node), str(num_nodes)], cwd=ROOT)
            stack.callback(child.wait)
            stack.callback(child.kill)
            children.append(child)
        readers = Readers(router, [child.pid for child in children])
        router.wait_ready(30.0)
        yield router, readers
        router.emit("end")
        for child in children:
            child.wait(10.0)
