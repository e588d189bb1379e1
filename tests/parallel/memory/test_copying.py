"""Copies of many sizes are whole, by one thread or two."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ding_lite.parallel.memory import copying
from ding_lite.parallel.memory.copying import copy_all


@given(st.lists(st.integers(0, 200), max_size=5), st.sampled_from([0, 100, 10_000]))
def test_every_byte_is_copied_to_its_place(sizes: list[int], shared_from: int) -> None:
    rng = np.random.default_rng(0)
    sources = [rng.integers(0, 256, size, np.uint8) for size in sizes]
    places = [np.zeros(size, np.uint8) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "SHARED_FROM", shared_from)
        copy_all(zip(places, sources, strict=True))
    for place, source in zip(places, sources, strict=True):
        np.testing.assert_array_equal(place, source)


@pytest.mark.parametrize(
    ("size", "can_start", "num_threads"), [(9_999, True, 0), (10_000, True, 1), (10_000, False, 1)]
)
def test_two_threads_copy_much_and_one_little_or_all_where_no_thread_can_start(
    size: int, can_start: bool, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, usual = list[str](), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        started.append(thread.name)
        if not can_start:
            raise RuntimeError("can't start new thread at interpreter shutdown")
        usual(thread)

    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(copying, "SHARED_FROM", 10_000)
    source = np.arange(size, dtype=np.uint32).view(np.uint8)[:size]
    place = np.zeros_like(source)
    copy_all([(place, source)])
    np.testing.assert_array_equal(place, source)
    assert started == ["ding_lite-copy"] * num_threads
