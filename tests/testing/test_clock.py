"""ManualClock: time that only the test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ding_lite.errors import DeadlineExceeded
from ding_lite.testing.clock import ManualClock


def test_time_moves_only_by_advance(clock: ManualClock) -> None:
    started = clock.now()
    clock.advance(1.5)
    clock.advance(0.25)
    assert clock.now() == started + 1.75


def test_it_never_goes_back(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1.0)


def test_a_sleeper_wakes_when_its_instant_has_come_and_not_before(clock: ManualClock) -> None:
    woken: list[float] = []

    def sleep() -> None:
        clock.sleep(5.0)
        woken.append(clock.now())

    with running(sleep):
        clock.until_waiting(1)
        clock.advance(4.0)
        clock.until_waiting(1)
        assert woken == []
        clock.advance(1.0)
    assert woken == [5.0]


def test_awaiting_a_thread_that_never_waits_times_out(clock: ManualClock) -> None:
    with pytest.raises(DeadlineExceeded, match="0 threads wait on this clock"):
        clock.until_waiting(1, timeout=0.01)


class running:
    """Run a function in a thread for the length of a block, and join it."""

    def __init__(self, target: Callable[[], None]) -> None:
        self.thread = threading.Thread(target=target)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.thread.join()
