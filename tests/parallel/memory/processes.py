"""Programs of other processes: `python -m tests.parallel.memory.processes NAME ARGUMENTS`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.parallel.memory import copying
from ding_lite.parallel.memory.segments import (
    DIRECTORY,
    Overtaken,
    Segment,
    SegmentReader,
    slot_bytes_of,
)
from ding_lite.parallel.memory.shared_values import MIN_SHARED_BYTES
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.wire.codec import Encoded, decode, encode
from tests.parallel.tcp import leaf_spec


def value(number: int, size: int = 20_000) -> Encoded:
    """Make a value with its number in all its arrays: a torn copy has two numbers."""
    full = np.full(size, number, np.int64)
    return encode({"number": number, "a": full, "b": full[: size // 2]}, borrow=True)


def number_of(copy: tuple[bytes, list[memoryview]]) -> int:
    tree = decode(*copy)
    arrays = tree["a"], tree["b"]
    found = {tree["number"], *(int(f(array)) for array in arrays for f in (np.min, np.max))}
    assert len(found) == 1, f"torn: {found}"
    return int(found.pop())


def read_newest(one: SegmentReader) -> int:
    """Return the number of the newest value that is not overwritten while it is read."""
    while True:
        version = max(number for number in one._sequences() if number % 2 == 0) // 2
        with suppress(Overtaken):
            return number_of(one.read(fresh, version))


def fresh(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))


@contextmanager
def segment(**more: int) -> Iterator[Segment]:
    one = Segment(**{"slot_bytes": slot_bytes_of(value(0)), **more})
    try:
        yield one
    finally:
        one.close()


@contextmanager
def reader(name: str) -> Iterator[SegmentReader]:
    one = SegmentReader(name)
    try:
        yield one
    finally:
        one.close()


def segments(pid: int | str = "*") -> set[str]:
    """Name those of a process, or of all; other jobs of the user may have some too."""
    return {path.name for path in DIRECTORY.glob(f"ding_lite-*-{pid}-*")}


def full(number: int, size: int = 2 * MIN_SHARED_BYTES // 8) -> np.ndarray:
    return np.full(size, number, np.int64)


# -- programs ------------------------------------------------------------------------------


def write(size: str, num_slots: str) -> None:
    """Write at full speed until the input ends."""
    with segment(slot_bytes=slot_bytes_of(value(0, int(size))), num_slots=int(num_slots)) as one:
        number = 0
        os.set_blocking(0, False)
        while number == 0 or _is_open(0):
            number += 1
            one.write(value(number, int(size)))
            if number == 1:
                say(one.name)


def get_stuck(size: str, num_versions: str) -> None:
    """Publish some versions and stop for ever in the middle of the copy of the next."""
    with segment(slot_bytes=slot_bytes_of(value(0, int(size)))) as one:
        for number in range(1, int(num_versions) + 1):
            one.write(value(number, int(size)))

        class Stuck:
            def __getattr__(self, name: str) -> object:
                return getattr(np, name)

            def copyto(self, target: np.ndarray, source: np.ndarray) -> None:
                np.copyto(target[: target.size // 2], source[: target.size // 2])
                say(one.name)
                sys.stdin.read()

        vars(copying)["np"] = Stuck()
        one.write(value(int(num_versions) + 1, int(size)))


def read(name: str, count: str) -> None:
    """Read so many versions, each whole and none older than the one before."""
    newest = 0
    with reader(name) as other:
        for _ in range(int(count)):
            number = read_newest(other)
            assert number >= newest
            newest = number
    say(newest)


def hang(hub: str) -> None:
    """Be node 1, and hang on the first large value."""
    router = NodeRouter(leaf_spec(1, hub, 2))

    class Stuck:
        def receive_event(self, *args: object) -> None: ...

        def receive_ctx(self, node_id: int, values: Any) -> None:
            say("stuck")
            threading.Event().wait()

    router.join(Stuck())
    threading.Event().wait()


def publish(hub: str) -> None:
    """Be node 1, publish a large value, and wait to be killed."""
    router = NodeRouter(leaf_spec(1, hub, 2))
    router.publish_ctx({"w": full(1)})
    threading.Event().wait()


def say(what: object) -> None:
    os.write(1, f"{what}\n".encode())


def _is_open(fd: int) -> bool:
    try:
        return os.read(fd, 1) != b""
    except BlockingIOError:
        return True


# -- for tests -----------------------------------------------------------------------------


@contextmanager
def process(program: Any, *args: object) -> Iterator[subprocess.Popen[str]]:
    """Run one of the programs above for the length of a block; what still runs then is killed."""
    command = [sys.executable, "-m", __name__, program.__name__, *map(str, args)]
    pipe, root = subprocess.PIPE, Path(__file__).parents[3]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root) as child:
        try:
            yield child
        finally:
            child.kill()


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
