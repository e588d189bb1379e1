"""Copies that are sent while they are made: whoever needs a byte finds it there."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ding_lite.clock import Deadline
from ding_lite.parallel import snapshot as module
from ding_lite.parallel.pool import Pool
from ding_lite.parallel.router import NodeRouter
from ding_lite.parallel.snapshot import Snapshot
from ding_lite.runtime.watch import Watch
from ding_lite.testing import Cluster
from tests.parallel.tcp import hub_spec, leaf_spec

MIB = 2**20


def sources(*sizes: int) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, 256, size, dtype=np.uint8) for size in sizes]


def joined(buffers: Sequence[memoryview | np.ndarray[Any, Any]]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


@given(
    st.lists(st.integers(0, 300), max_size=6),
    st.lists(st.one_of(st.none(), st.integers(0, 900)), max_size=8),
)
@settings(deadline=None)
def test_as_much_is_there_as_was_asked_for(sizes: list[int], asked: list[int | None]) -> None:
    before, module._PIECE_BYTES = module._PIECE_BYTES, 64
    try:
        arrays = sources(*sizes)
        expected, pool = joined(arrays), Pool()
        waste = pool.allocate(4 * sum(sizes) + 64)
        waste[:] = bytes(waste.nbytes)  # what is not copied is 0, and no source has a 0
        del waste
        snapshot = Snapshot([array.data for array in arrays], pool)
        for nbytes in asked:
            snapshot.fill(nbytes)
            there = len(expected) if nbytes is None else nbytes
            assert joined(snapshot.buffers)[:there] == expected[:there]
        snapshot.fill()
        for array in arrays:
            array[:] = 0
        assert joined(snapshot.buffers) == expected
    finally:
        module._PIECE_BYTES = before


def test_several_threads_fill_it_together() -> None:
    arrays = sources(3 * MIB + 5, 17, 2 * MIB)
    expected = joined(arrays)
    for _ in range(20):
        snapshot = Snapshot([array.data for array in arrays], Pool())
        together = threading.Barrier(4)

        def fill(step: int, snapshot: Snapshot = snapshot, together: Any = together) -> bool:
            together.wait()
            for nbytes in [*range(0, len(expected), step), len(expected)]:
                snapshot.fill(nbytes)
                if joined(snapshot.buffers)[:nbytes] != expected[:nbytes]:
                    return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(fill, [MIB // 2, MIB, 3 * MIB, 6 * MIB]))


def test_who_is_interrupted_leaves_nothing_half_done(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, copyto = sources(2 * MIB, MIB), np.copyto
    snapshot = Snapshot([array.data for array in arrays], Pool())

    def copy_and_be_interrupted(to: Any, source: Any) -> None:
        copyto(to[: len(to) // 2], source[: len(source) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "copyto", copy_and_be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        snapshot.fill()
    monkeypatch.undo()
    snapshot.fill()
    assert joined(snapshot.buffers) == joined(arrays)


def test_an_interrupt_of_publish_leaves_nothing_to_be_copied_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else others would get what the arrays are by then."""
    copyto, left, here = np.copyto, [2], threading.get_ident()

    def interrupt(to: Any, source: Any) -> None:
        left[0] -= threading.get_ident() == here
        if left[0] == 0:
            left[0] = -1
            raise KeyboardInterrupt
        copyto(to, source)

    with Cluster(2) as cluster:
        cluster.network.cut(0, 1)  # so that nobody else does it
        weights = np.ones(2 * MIB)
        monkeypatch.setattr(np, "copyto", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cluster.routers[0].publish_ctx({"w": weights})
        monkeypatch.undo()
        weights[:] = 2.0
        assert (cluster.routers[0].published("w") == 1.0).all()


def test_what_is_sent_while_it_is_copied_arrives_as_it_was() -> None:
    """The publisher changes it at once, and publishes again whether it was read or not."""
    with ExitStack() as stack:
        hub = stack.enter_context(closing(NodeRouter(hub_spec(2))))
        router = stack.enter_context(closing(NodeRouter(leaf_spec(1, hub.address, 2))))
        hub.wait_ready(10.0)
        watch = router.watch("a", "b", "number")
        large, small = np.zeros(2 * MIB), np.zeros((7, MIB // 2), np.float32)
        for number in range(1, 20):
            large[:], small[:] = number, -number
            hub.publish_ctx({"a": [large, "text", np.full(9, number)]})
            hub.publish_ctx({"number": number, "b": {"w": small, "bytes": bytes([number]) * MIB}})
            large[:], small[:] = 99, 99
            if number % 3 == 0:
                check_whole(watch, number)


def check_whole(watch: Watch, number: int) -> None:
    def has_come(newest: Mapping[str, Any]) -> bool:
        return newest.get("number") == number and newest["a"][2][0] == number

    assert watch.wait(has_come, Deadline.after(10.0), lambda: False)
    assert (watch.newest["a"][0] == number).all()
    assert (watch.newest["b"]["w"] == -number).all()
    assert watch.newest["b"]["bytes"] == bytes([number]) * MIB
