"""A slow link between two machines: what a state takes, and events where packets are lost.

Each machine is a network namespace (tests/procs/network.py), the link delays every packet by 50 ms
one way. The baseline is a plain TCP connection between the same two processes, which copies as many
bytes out of memory into memory in turn with ours; neither is encrypted nor authenticated there.
The monotonic clock is the same for all processes of a machine, whatever their namespace.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ding_lite.parallel.network.security import make_key
from tests.bench.harness import Row, row_from_samples
from tests.procs.network import Network
from tests.procs.programs import PREAMBLE
from tests.procs.shells import Shell

DELAY_S = 0.05
LOSS = 0.02
HERE, THERE = "10.77.0.1", "10.77.0.2"
MEGABYTES = 10
EVENTS = 5_000
WARM_UP = 2
ROUNDS = 7

PAIR = (
    PREAMBLE
    + """
import json, queue, socket, time
import numpy as np

HERE, PORT = "10.77.0.1", 50516
SIZE, EVENTS, ROUNDS = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

class Ears:
    def __init__(self, router):
        self.said = queue.SimpleQueue()
        self.numbers = []
        router.join(self)

    def receive_event(self, node_id, event, args, kwargs):
        if event == "n":
            self.numbers.append(args[0])
            if args[0] % EVENTS == EVENTS - 1:
                self.said.put((time.monotonic(), self.numbers))
                self.numbers = []
        elif event in ("open", "has"):
            self.said.put(args)

    def receive_ctx(self, node_id, values):
        if "number" in values:
            self.said.put((time.monotonic(), values["number"], float(values["state"][-1])))

def send(router, ears, plain):
    rows = {"state": [], "plain state": [], "events": [], "plain events": []}
    state = np.ones(SIZE // 4, np.float32)
    blocks = {"plain state": state.view(np.uint8).data, "plain events": bytes(100 * EVENTS)}
    for number in range(ROUNDS):
        for name, block in blocks.items():
            if len(block):
                began = time.monotonic()
                plain.sendall(len(block).to_bytes(8, "little"))
                plain.sendall(block)
                rows[name].append(float(plain.recv(64)) - began)
        if SIZE:
            state[-1] = number
            began = time.monotonic()
            router.publish_ctx({"number": number, "state": state})
            at, *what = ears.said.get()
            assert what == [number, float(number)], what
            rows["state"].append(at - began)
        if EVENTS:
            began = time.monotonic()
            for k in range(EVENTS):
                router.emit("n", k, b"x" * 80)
            at, are_whole = ears.said.get()
            assert are_whole
            rows["events"].append(at - began)
    print(json.dumps(rows), flush=True)

def take(router, ears, plain):
    block = bytearray(max(SIZE, 100 * EVENTS))
    for number in range(ROUNDS):
        for _ in range(bool(SIZE) + bool(EVENTS)):
            left = int.from_bytes(plain.recv(8, socket.MSG_WAITALL), "little")
            view = memoryview(block)[:left]
            while view:
                view = view[plain.recv_into(view):]
            plain.sendall(str(time.monotonic()).encode().ljust(64))
        if SIZE:
            router.emit("has", *ears.said.get())
        if EVENTS:
            at, numbers = ears.said.get()
            router.emit("has", at, numbers == [*range(EVENTS)])

def main():
    router = Parallel()
    ears = Ears(router)
    if router.node_id == 0:
        with socket.create_server((HERE, PORT)) as door:
            router.emit("open")
            plain, _ = door.accept()
            with plain:
                send(router, ears, plain)
    else:
        ears.said.get()  # "open"
        with socket.create_connection((HERE, PORT)) as plain:
            take(router, ears, plain)

if __name__ == "__main__":
    Parallel.runner(2, "star")(main)
"""
)


def run() -> list[Row]:
    """Measure a state over the delayed link, then events over one that loses packets as well."""
    name = f"{DELAY_S * 1e3:.0f} ms each way"
    state = measured(MEGABYTES * 10**6, 0, loss=0.0)
    events = measured(0, EVENTS, loss=LOSS)
    return [
        row_from_samples(
            f"state of {MEGABYTES} MB to another machine, {name}",
            state["state"],
            baseline=state["plain state"],
            baseline_name="as many bytes over plain TCP",
            unit="ms",
            target=1.5,
            tracked=True,
        ),
        row_from_samples(
            f"{EVENTS:,} events to another machine, {name}, {LOSS:.0%} of packets lost: all, once",
            events["events"],
            baseline=events["plain events"],
            baseline_name="as many bytes over plain TCP",
            unit="ms",
        ),
    ]


def measured(num_bytes: int, num_events: int, *, loss: float) -> dict[str, list[float]]:
    with machines(loss) as (start, folder):
        (folder / "train.py").write_text(PAIR)
        shells = [start(node, num_bytes, num_events) for node in (0, 1)]
        codes, output = zip(*(shell.end() for shell in shells), strict=True)
    if any(codes):
        raise RuntimeError("\n".join(output))
    rows: dict[str, list[float]] = json.loads(output[0])
    return {name: samples[WARM_UP:] for name, samples in rows.items()}


@contextmanager
def machines(loss: float) -> Iterator[tuple[Any, Path]]:
    """Make two machines; yield what starts a node on one of them, and where its program lies."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        network = stack.enter_context(Network())
        places = [network.machine(address) for address in (HERE, THERE)]
        network.delay_s, network.loss = DELAY_S, loss
        key = make_key(folder / "job.key")

        def start(node: int, *arguments: int) -> Shell:
            where = f"ATTACH_TO=tcp://{HERE}:50515" if node else f"ADDRESS={HERE}"
            line = f"DING_LITE_NUM_NODES=2 DING_LITE_NODE_ID={node} DING_LITE_{where} "
            line += f"DING_LITE_PORTS=50515 DING_LITE_KEY_FILE={key} exec python train.py "
            line += " ".join(map(str, (*arguments, WARM_UP + ROUNDS)))
            shell = places[node].type_line(folder, line, TMPDIR=str(folder))
            return stack.enter_context(shell)

        yield start, folder
