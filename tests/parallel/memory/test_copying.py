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


def test_much_is_copied_by_two_threads_and_little_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    started: list[str] = []
    start = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda thread: (started.append(thread.name), start(thread))
    )
    little, much = (
        np.ones(size, np.uint8) for size in (copying.SHARED_FROM - 1, copying.SHARED_FROM)
    )
    copy_all([(np.zeros_like(little), little)])
    assert not started
    copy_all([(np.zeros_like(much), much)])
    assert started == ["ding_lite-copy"]


def test_where_no_thread_can_start_one_copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(threading.Thread, "start", refuse)
    source = np.arange(copying.SHARED_FROM // 4, dtype=np.uint32).view(np.uint8)
    place = np.zeros_like(source)
    copy_all([(place, source)])
    np.testing.assert_array_equal(place, source)
