"""Clocks and deadlines: time as an object that tests can control.

No other module sleeps or computes deadlines. Deadlines are absolute instants on a clock; users
write timeouts in seconds, and `None` waits for ever.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from ding_lite.cancellation import Wait, cancelled
from ding_lite.errors import ConfigError

__all__ = ["Clock"]
T = TypeVar("T")


class Clock(Protocol):
    """A source of time that can also wait."""

    def now(self) -> float:
        """Return seconds since some fixed instant; never goes back."""
        ...

    def wait(self, condition: threading.Condition, instant: float) -> None:
        """Wait on a held condition until it is notified or the clock shows `instant`.

        It may return earlier, so callers wait in a loop. The argument is an instant and not a
        duration, so that no time is lost between its computation and the wait.
        """
        ...


LOOK_UP_S = 0.5
"""Seconds after which a wait for another thread checks for signals."""


class SystemClock:
    """The machine's monotonic clock."""

    now = staticmethod(time.monotonic)
    """Return seconds since some fixed instant; never goes back."""

    def wait(self, condition: threading.Condition, instant: float) -> None:
        """Wait on a held condition until it is notified or the clock shows `instant`.

        It returns after `LOOK_UP_S` at the latest: a signal that arrives just before Python blocks
        on a lock is handled only after that wait.
        """
        condition.wait(max(0.0, min(instant - self.now(), LOOK_UP_S)))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


class QuietCondition(threading.Condition):
    """A condition that costs nothing to notify while no thread waits."""

    def __init__(self, lock: threading.RLock | None = None) -> None:
        super().__init__(lock)
        self._num_waiting = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified, with the lock held, or until the timeout."""
        self._num_waiting += 1
        try:
            return super().wait(timeout)
        finally:
            self._num_waiting -= 1

    def notify_all(self) -> None:
        """Wake all waiting threads, with the lock held."""
        if self._num_waiting:
            super().notify_all()


@dataclass(frozen=True)
class Deadline:
    """An absolute instant on a clock, at which waits time out."""

    clock: Clock
    instant: float

    @classmethod
    def after(cls, timeout: float | None, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """Make a deadline in `timeout` seconds; with `None` it never expires."""
        with suppress(TypeError):
            if timeout is None or timeout > threading.TIMEOUT_MAX:
                return cls(clock, math.inf)
            if timeout >= 0:
                return cls(clock, clock.now() + timeout)
        raise ConfigError(
            f"`timeout` is {timeout!r:.80}; give seconds, from 0 on, or None to wait for ever."
        )

    @property
    def remaining(self) -> float | None:
        """Seconds left, at least 0; `None` if the deadline never expires."""
        if self.instant == math.inf:
            return None
        return max(0.0, self.instant - self.clock.now())

    @property
    def expired(self) -> bool:
        return self.expires_within(0.0)

    def expires_within(self, seconds: float) -> bool:
        """Return whether the deadline expires within `seconds` from now."""
        return self.clock.now() + seconds >= self.instant

    def wait(self, condition: threading.Condition, ready: Callable[[], bool]) -> bool:
        """Wait on a held condition until `ready()`; return False at the deadline.

        Raises:
            StepCancelled: The step that contains this call has failed.
        """
        if ready():  # costs no `Wait` then
            return True
        with Wait(partial(_notify, condition)) as wait:
            while not ready():
                if wait.is_over:
                    raise cancelled()
                if self.expired:
                    return False
                self.clock.wait(condition, self.instant)
        return True

    def result_of(self, answer: Future[T]) -> T:
        """Wait for the result of a future, and return it.

        Raises:
            TimeoutError: There is no result at the deadline.
            StepCancelled: The step that contains this call has failed.
        """
        if not answer.done():
            # Not by `answer.result`: it does not look up for a signal that came just before it.
            changed = threading.Condition()
            answer.add_done_callback(lambda _: _notify(changed))
            with changed:
                self.wait(changed, answer.done)
        return answer.result(0.0)


def _notify(condition: threading.Condition) -> None:
    with condition:
        condition.notify_all()
