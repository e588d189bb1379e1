"""The cost of a message between two nodes, beside bare ZeroMQ between the same two processes.

The other process runs a node and a bare socket side by side, so that both meet the same machine.
The state goes over tcp, encrypted on both sides of the comparison; the bare sockets send it as
chunks of 1 MiB that are copied nowhere, not even where they arrive, out of memory that was written
to, as that of a state is. The events go over ipc: once with a core for each process, as nodes
have that are not crowded, and once with their threads wherever the system puts them. Both nodes
wait for what comes, one in a task and one by its router, as programs do that have asked for
something. The monotonic clock is the same in all processes of a machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import zmq
from zmq.utils import z85

from ding_lite.parallel.network.security import load_key, make_key
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.messaging.router import use_router
from ding_lite.runtime.task import Task
from tests.bench.harness import ROOT, Row, row_from_samples
from tests.parallel.tcp import hub_spec, leaf_spec

CHUNK = 2**20
NUM_ARRAYS = 20
MEGABYTES = 100
WARM_UP = 3
STATES = 15
ROUND_TRIPS = 400
SAMPLES = 21
BURST = 20_000
BODY = bytes(100)


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        key_file = str(make_key(Path(directory) / "key"))
        cores = sorted(os.sched_getaffinity(0))
        with pair("ipc", directory, key_file, cores=cores[:2]) as (router, recorder, bare):
            rows = [round_trip(router, recorder, bare, "a core for each process")]
        with pair("ipc", directory, key_file) as (router, recorder, bare):
            rows += [round_trip(router, recorder, bare, "on any core"), burst(router, recorder)]
        with pair("tcp", directory, key_file) as (router, recorder, bare):
            rows.append(state(router, recorder, bare))
    return rows


def state(router: NodeRouter, recorder: Recorder, bare: Bare) -> Row:
    """Publish; the other node says when it had the whole."""
    size = MEGABYTES * 10**6 // NUM_ARRAYS // 4
    tree = {f"layer {k}": np.full(size, k, np.float32) for k in range(NUM_ARRAYS)}
    block = np.full(MEGABYTES * 10**6, 1, np.uint8).data  # zeros would all be the same page
    chunks = [block[at : at + CHUNK] for at in range(0, len(block), CHUNK)]
    ours, theirs = [], []
    for number in range(WARM_UP + STATES):
        started = monotonic()
        router.publish_ctx({"number": number, "state": tree})
        ours.append(recorder.wait(number) - started)

        started = monotonic()
        for chunk in chunks:
            bare.send(chunk)
        bare.send(b"end")
        theirs.append(float(bare.recv()) - started)
    return row_from_samples(
        f"state of {MEGABYTES} MB over tcp: publish, until the other node has it",
        ours[WARM_UP:],
        baseline=theirs[WARM_UP:],
        baseline_name="bare ZeroMQ, encrypted, 1 MiB zero-copy chunks",
        unit="ms",
        target=1.3,
        tracked=True,
    )


def round_trip(router: NodeRouter, recorder: Recorder, bare: Bare, where: str) -> Row:
    """Emit an event; a listener of the other node's task emits the answer."""
    ours, theirs = [], []
    for sample in range(SAMPLES):
        started = monotonic()
        for number in range(ROUND_TRIPS):
            router.emit("ping", (sample, number), BODY)
            recorder.wait((sample, number))
        ours.append((monotonic() - started) / ROUND_TRIPS)

        started = monotonic()
        for _ in range(ROUND_TRIPS):
            bare.send(BODY)
            bare.recv()
        theirs.append((monotonic() - started) / ROUND_TRIPS)
    return row_from_samples(
        f"event of 100 B over ipc: round trip, {where}",
        ours,
        baseline=theirs,
        baseline_name="bare DEALER and ROUTER",
        unit="us",
        target=2.5,
        tracked=True,
    )


def burst(router: NodeRouter, recorder: Recorder) -> Row:
    samples = []
    for sample in range(SAMPLES):
        started = monotonic()
        for _ in range(BURST):
            router.emit("burst", BODY)
        router.emit("ping", (-1, sample), b"")
        recorder.wait((-1, sample))
        samples.append((monotonic() - started) / BURST)
    return row_from_samples(
        "event of 100 B over ipc: each of a stream of 20,000",
        samples,
        unit="us",
        target=50.0,
        tracked=True,
    )


# -- the two processes ---------------------------------------------------------------------


class Recorder:
    def __init__(self, router: NodeRouter) -> None:
        self._router = router
        self._answer: tuple[Any, float] = (None, 0.0)
        self._changed = threading.Condition()
        router.join(self)

    def receive_event(self, node_id: int, event: str, args: tuple[Any, ...], kwargs: Any) -> None:
        if event not in ("begun", "pong", "have"):
            return
        with self._changed:
            self._answer = args[0], args[1]
            self._changed.notify_all()
        self._router.wake_pump()

    def receive_ctx(self, node_id: int, values: Any) -> None:
        """The other node publishes nothing."""

    def wait(self, token: object) -> float:
        """Block until the answer with this token has come; return when it was given."""
        self._router.pump(lambda: bool(self._answer[0] == token), 30.0)
        with self._changed:
            if not self._changed.wait_for(lambda: self._answer[0] == token, 30.0):
                raise TimeoutError(f"No answer to {token}; the last was {self._answer}.")
            return self._answer[1]


class Replier:
    def __init__(self, router: NodeRouter) -> None:
        self._router = router
        router.join(self)

    def receive_event(self, node_id: int, event: str, args: tuple[Any, ...], kwargs: Any) -> None:
        """Leave the events to the task."""

    def receive_ctx(self, node_id: int, values: Any) -> None:
        if "state" in values:
            self._router.emit("have", values["number"], monotonic())


class Bare:
    """One end of a bare connection, encrypted where the nodes' one is."""

    def __init__(self, kind: int, key_file: str | None) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(kind)
        self.socket.linger = 0
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self._to: list[bytes] = []
        if key_file is not None:
            key = load_key(key_file)
            theirs, own = z85.encode(key.of_listener(0)), z85.encode(key.of_dialler(1))
            if kind == zmq.ROUTER:
                self.socket.curve_server = True
                self.socket.curve_secretkey = theirs
            else:
                self.socket.curve_serverkey = zmq.curve_public(theirs)
                self.socket.curve_secretkey = own
                self.socket.curve_publickey = zmq.curve_public(own)

    def bind(self, directory: str, *, tcp: bool) -> str:
        self.socket.bind("tcp://127.0.0.1:0" if tcp else f"ipc://{directory}/bare")
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def meet(self) -> None:
        """Wait for the other end's first message, and answer where it came from."""
        if not self.socket.poll(30_000):
            raise TimeoutError("The other process has not come.")
        self._to = [self.socket.recv_multipart()[0]]

    def send(self, part: bytes | memoryview) -> None:
        self.socket.send_multipart([*self._to, part], copy=False)

    def recv(self) -> bytes:
        return self.socket.recv_multipart()[-1]

    def close(self) -> None:
        self.socket.close()
        self._context.term()


def be_the_other(address: str, bare_address: str, key_file: str, *cores: str) -> None:
    if cores:
        os.sched_setaffinity(0, map(int, cores))
    is_tcp = address.startswith("tcp")
    bare = Bare(zmq.DEALER, key_file if is_tcp else None)
    has_ended = threading.Event()
    spec = leaf_spec(1, address, 2, key_file=key_file)
    with closing(bare), closing(NodeRouter(spec)) as router:
        bare.socket.connect(bare_address)
        bare.send(b"here")
        answering = threading.Thread(target=answer, args=(bare, has_ended))
        answering.start()
        try:
            with router.deferred_sigint.installed(), use_router(router), Task() as task:

                def begin(token: str) -> None:
                    Replier(router)  # now that the task is there to be told of events
                    task.emit("begun", token, monotonic())

                task.on("begin", begin)
                task.on("ping", lambda token, _: task.emit("pong", token, monotonic()))
                task.wait_for("end", timeout=600.0)
        finally:
            has_ended.set()
            answering.join()


def answer(bare: Bare, has_ended: threading.Event) -> None:
    while not has_ended.is_set():
        if not bare.socket.poll(100):
            continue
        part = bare.socket.recv(copy=False)
        if len(part) == len(BODY):
            bare.socket.send(part, copy=False)
        elif len(part) < len(BODY):
            bare.send(repr(monotonic()).encode())


@contextmanager
def pair(
    protocol: str, directory: str, key_file: str, *, cores: Sequence[int] = ()
) -> Iterator[tuple[NodeRouter, Recorder, Bare]]:
    """Start a node here and one elsewhere, with a bare connection beside them.

    Args:
        protocol: What they connect over.
        directory: Where their socket files lie.
        key_file: The key of the job.
        cores: One for this process and one for the other; any are fine unless given.
    """
    is_tcp = protocol == "tcp"
    code = "import sys; from tests.bench.bench_tcp import be_the_other as run; run(*sys.argv[1:])"
    listen = "tcp://127.0.0.1:0" if is_tcp else f"ipc://{directory}/node"
    with ExitStack() as stack:
        if cores:  # before there are threads, which inherit those of the thread that starts them
            stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[0]})
        spec = hub_spec(2, listen=listen, key_file=key_file)
        router = stack.enter_context(closing(NodeRouter(spec)))
        bare = stack.enter_context(closing(Bare(zmq.ROUTER, key_file if is_tcp else None)))
        addresses = [str(router.address), bare.bind(directory, tcp=is_tcp)]
        others = [key_file, *map(str, cores[1:])]
        child = subprocess.Popen([sys.executable, "-c", code, *addresses, *others], cwd=ROOT)
        stack.callback(child.wait)
        stack.callback(child.kill)
        router.wait_ready(30.0)
        bare.meet()
        with router.deferred_sigint.installed():
            recorder = Recorder(router)
            router.emit("begin", "both are there")
            recorder.wait("both are there")
            yield router, recorder, bare
        router.emit("end")
        child.wait(10.0)
