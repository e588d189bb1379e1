"""A clock that tests advance by hand.

Use it wherever a `Clock` is accepted. Threads that wait with a timeout stay blocked until `advance`
has moved the clock past their instant, so a test of five seconds takes no time.
"""

from __future__ import annotations

import threading

from ding_lite.errors import DeadlineExceeded


class ManualClock:
    """A `Clock` that only `advance` moves.

    Example:
        >>> clock = ManualClock()
        >>> clock.advance(2.5)
        >>> clock.now()
        2.5
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._changed = threading.Condition()
        self._waiting: dict[object, tuple[float, threading.Condition]] = {}

    def now(self) -> float:
        """Return the current instant of this clock, in seconds."""
        with self._changed:
            return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward, and wake the threads with an instant that is now past.

        Do not call it while holding the condition of a waiting thread, unless it is re-entrant.
        """
        if seconds < 0:
            raise ValueError(f"Cannot advance by {seconds} s: a clock never goes back.")
        with self._changed:
            self._now += seconds
            due = [
                condition for instant, condition in self._waiting.values() if instant <= self._now
            ]
        for condition in due:
            with condition:
                condition.notify_all()

    def wait(self, condition: threading.Condition, instant: float) -> None:
        """Wait on a held condition until it is notified or the clock shows `instant`."""
        token = object()
        with self._changed:
            if instant <= self._now:
                return
            self._waiting[token] = (instant, condition)
            self._changed.notify_all()
        try:
            condition.wait()
        finally:
            with self._changed:
                del self._waiting[token]

    def until_waiting(self, threads: int = 1, *, timeout: float = 10.0) -> None:
        """Wait until `threads` threads wait on this clock.

        Call it before `advance`; otherwise a thread that has not begun to wait misses the change.

        Args:
            threads: The minimum number of threads.
            timeout: Seconds of real time to wait for them.

        Raises:
            DeadlineExceeded: Fewer threads wait at the timeout.
        """
        with self._changed:
            if self._changed.wait_for(lambda: len(self._waiting) >= threads, timeout):
                return
            found = len(self._waiting)
        raise DeadlineExceeded(
            f"{found} threads wait on this clock after {timeout:g} s; expected {threads}. "
            f"Either they were not started with this clock, or they have ended already."
        )
