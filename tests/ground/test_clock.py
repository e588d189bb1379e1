"""Clocks and deadlines."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from hypothesis import given, strategies as st

from ding_lite.clock import SYSTEM_CLOCK, Deadline, SystemClock
from ding_lite.errors import ConfigError
from ding_lite.testing.clock import ManualClock


def test_a_wait_on_the_system_clock_ends_when_the_condition_is_notified() -> None:
    condition = threading.Condition()
    message: list[str] = []

    def notify() -> None:
        with condition:  # to be had only once the main thread waits
            message.append("now")
            condition.notify_all()

    with condition:
        thread = threading.Thread(target=notify)
        thread.start()
        while not message:
            SYSTEM_CLOCK.wait(condition, math.inf)
    thread.join()
    assert message == ["now"]


def test_a_long_wait_looks_up_for_a_signal_that_came_just_before_it() -> None:
    condition = threading.Condition()  # no thread will notify it
    with condition:
        for instant in (math.inf, 1e10, SYSTEM_CLOCK.now()):
            SYSTEM_CLOCK.wait(condition, instant)


def test_a_wait_for_a_result_looks_up_for_a_signal_that_came_just_before_it() -> None:
    answer: Future[str] = Future()

    class Looking(SystemClock):
        def wait(self, condition: threading.Condition, instant: float) -> None:
            super().wait(condition, self.now())  # as long as no other thread notifies it
            answer.set_result("answered by a signal handler")

    assert Deadline.after(10.0, Looking()).result_of(answer) == "answered by a signal handler"


def test_a_deadline_without_a_timeout_never_comes_and_one_of_no_time_has_come(clock) -> None:
    for timeout in (0, 0.0, -0.0):
        deadline = Deadline.after(timeout, clock)
        assert deadline.expired
        assert deadline.remaining == 0.0
    endless = [Deadline.after(timeout, clock) for timeout in (None, float("inf"), 1e300, 10**400)]
    clock.advance(1e300)
    for deadline in endless:
        assert not deadline.expired
        assert deadline.remaining is None


def test_a_deadline_is_an_instant_on_a_clock_and_cannot_be_moved(clock: ManualClock) -> None:
    of_no_use = (float("nan"), "nan"), (-1, "-1"), (float("-inf"), "-inf")
    for wrong, shown in (*of_no_use, ("5", "'5'"), ([1], r"\[1\]")):
        with pytest.raises(ConfigError, match=f"`timeout` is {shown}; give seconds"):
            Deadline.after(wrong, clock)  # type: ignore[arg-type]
    deadline = Deadline.after(1.0)
    assert deadline.clock is SYSTEM_CLOCK
    with pytest.raises(dataclasses.FrozenInstanceError):
        deadline.instant = 5.0  # type: ignore[misc]


@given(start=st.integers(-1000, 1000), timeout=st.integers(0, 1000), passed=st.integers(0, 2000))
def test_the_remaining_time_is_the_time_not_yet_passed(start, timeout, passed) -> None:
    clock = ManualClock(start)
    deadline = Deadline.after(timeout, clock)
    clock.advance(passed)
    assert deadline.remaining == max(0, timeout - passed)
    assert deadline.expired == (passed >= timeout)


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


@pytest.mark.parametrize("timeout", [5.0, None])
def test_only_a_notification_of_what_is_waited_for_ends_a_wait_before_its_deadline(clock, timeout):
    condition = threading.Condition()
    looks: list[int] = []
    looked = threading.Semaphore(0)

    def ready() -> bool:
        looks.append(len(looks))
        looked.release()
        return len(looks) == 4

    thread, outcome = wait_in_a_thread(Deadline.after(timeout, clock), condition, ready)
    for _ in range(3):
        looked.acquire()
        clock.until_waiting(1)
        with condition:
            assert outcome == []
            condition.notify_all()
    thread.join()
    assert outcome == [True]
    assert clock.now() == 0.0


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
