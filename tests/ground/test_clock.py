"""Clocks and deadlines."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from ding_lite.clock import SYSTEM_CLOCK, Clock, Deadline, SystemClock
from ding_lite.errors import ConfigError
from ding_lite.testing.clock import ManualClock

# -- the machine's clock ---------------------------------------------------------------------


def test_the_system_clock_is_a_clock_that_never_goes_back() -> None:
    clock: Clock = SYSTEM_CLOCK
    instants = [clock.now() for _ in range(100)]
    assert instants == sorted(instants)


def test_the_system_clock_reads_the_monotonic_clock() -> None:
    before = time.monotonic()
    assert before <= SystemClock().now() <= time.monotonic()


def test_the_system_clock_sleeps_as_long_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    SystemClock().sleep(2.5)
    assert slept == [2.5]


def test_a_wait_on_the_system_clock_ends_when_the_condition_is_notified() -> None:
    condition = threading.Condition()
    said: list[str] = []

    def notify() -> None:
        with condition:  # to be had only once the main thread waits
            said.append("now")
            condition.notify_all()

    with condition:
        thread = threading.Thread(target=notify)
        thread.start()
        while not said:
            SYSTEM_CLOCK.wait(condition, math.inf)
    thread.join()
    assert said == ["now"]


@pytest.mark.parametrize("instant", [math.inf, 1e10])
def test_a_long_wait_looks_up_for_a_signal_that_came_just_before_it(instant: float) -> None:
    condition = threading.Condition()  # no thread will notify it
    with condition:
        SYSTEM_CLOCK.wait(condition, instant)


def test_a_wait_of_no_time_on_the_system_clock_ends_at_once() -> None:
    condition = threading.Condition()
    with condition:
        SYSTEM_CLOCK.wait(condition, SYSTEM_CLOCK.now())


# -- deadlines -----------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, float("inf")])
def test_a_deadline_without_a_timeout_never_comes(clock, timeout) -> None:
    deadline = Deadline.after(timeout, clock)
    clock.advance(1e300)
    assert not deadline.expired
    assert deadline.remaining is None


@pytest.mark.parametrize("timeout", [0, 0.0, -1.0, float("-inf")])
def test_a_deadline_of_no_time_has_come_already(clock: ManualClock, timeout: float) -> None:
    deadline = Deadline.after(timeout, clock)
    assert deadline.expired
    assert deadline.remaining == 0.0


def test_a_deadline_that_is_no_instant_is_refused(clock: ManualClock) -> None:
    with pytest.raises(ConfigError, match="`timeout` is NaN"):
        Deadline.after(float("nan"), clock)


def test_a_deadline_is_on_the_machines_clock_unless_another_is_given() -> None:
    assert Deadline.after(1.0).clock is SYSTEM_CLOCK


def test_a_deadline_cannot_be_moved(clock: ManualClock) -> None:
    deadline = Deadline.after(1.0, clock)
    with pytest.raises(dataclasses.FrozenInstanceError):
        deadline.instant = 5.0  # type: ignore[misc]


@given(start=st.integers(-1000, 1000), timeout=st.integers(0, 1000), passed=st.integers(0, 2000))
def test_the_remaining_time_is_the_time_not_yet_passed(start, timeout, passed) -> None:
    clock = ManualClock(start)
    deadline = Deadline.after(timeout, clock)
    clock.advance(passed)
    assert deadline.remaining == max(0, timeout - passed)
    assert deadline.expired == (passed >= timeout)


# -- waiting -------------------------------------------------------------------------------


def wait_in_a_thread(
    deadline: Deadline, condition: threading.Condition, ready: Callable[[], bool]
) -> tuple[threading.Thread, list[bool]]:
    outcome: list[bool] = []

    def wait() -> None:
        with condition:
            outcome.append(deadline.wait(condition, ready))

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, outcome


def test_what_is_ready_needs_no_waiting_even_behind_the_deadline(clock: ManualClock) -> None:
    condition = threading.Condition()
    with condition:
        assert Deadline.after(-1.0, clock).wait(condition, lambda: True)


def test_a_wait_behind_the_deadline_ends_at_once(clock: ManualClock) -> None:
    condition = threading.Condition()
    with condition:
        assert not Deadline.after(0.0, clock).wait(condition, lambda: False)


@pytest.mark.parametrize("timeout", [5.0, None])
def test_a_wait_ends_in_time_when_it_is_notified(clock: ManualClock, timeout: float | None) -> None:
    condition, ready = threading.Condition(), threading.Event()
    thread, outcome = wait_in_a_thread(Deadline.after(timeout, clock), condition, ready.is_set)

    clock.until_waiting(1)
    with condition:
        ready.set()
        condition.notify_all()
    thread.join()
    assert outcome == [True]


def test_a_wait_that_is_not_notified_ends_with_the_deadline(clock: ManualClock) -> None:
    condition = threading.Condition()
    thread, outcome = wait_in_a_thread(Deadline.after(5.0, clock), condition, lambda: False)

    clock.until_waiting(1)
    clock.advance(4.0)
    assert outcome == []
    clock.until_waiting(1)
    clock.advance(1.0)
    thread.join()
    assert outcome == [False]


def test_being_woken_for_something_else_does_not_end_a_wait(clock: ManualClock) -> None:
    condition = threading.Condition()
    looks: list[int] = []
    looked = threading.Semaphore(0)

    def ready() -> bool:
        looks.append(len(looks))
        looked.release()
        return len(looks) == 4

    thread, outcome = wait_in_a_thread(Deadline.after(5.0, clock), condition, ready)
    for _ in range(3):
        looked.acquire()
        clock.until_waiting(1)
        with condition:
            assert outcome == []
            condition.notify_all()
    thread.join()
    assert outcome == [True]
    assert clock.now() == 0.0


def test_a_wait_raises_the_error_of_its_condition(clock: ManualClock) -> None:
    condition = threading.Condition()

    def ready() -> bool:
        raise LookupError("gone")

    with condition, pytest.raises(LookupError, match="gone"):
        Deadline.after(1.0, clock).wait(condition, ready)
