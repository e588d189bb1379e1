"""The event loop of the transport, which a thread that waits for a message may run itself.

If one thread reads a message and another one waits for it, the message changes threads, and mostly
cores, which takes longer than all other work on a small message. So a waiting thread may lead: it
reads by itself until its message has come (Schmidt et al. 2000, "Leader/Followers"). Meanwhile the
reactor's own thread sleeps, except for due work and `wake`.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ding_lite.clock import LOOK_UP_S, SYSTEM_CLOCK
from ding_lite.parallel.transport.zeromq.sockets import Socket, Sockets


class Reactor(ABC):
    """An event loop over sockets, each iteration of which runs on one thread."""

    def __init__(self) -> None:
        self._sockets = Sockets()
        self._thread = threading.Thread(target=self._run, name="ding_lite-transport", daemon=True)
        # The outermost locks of the thread that reads messages: callbacks and quick handlers run
        # within. docs/design/0016-the-order-of-locks.md has the order of all locks.
        self._iterating = threading.Lock()
        self._leading = threading.Lock()
        self._leader = 0
        self._ends_pump = False
        self._own_thread_at = -math.inf
        """The latest time at which the reactor's own thread serves again; read by the leader."""
        self._is_stopped = True

    @abstractmethod
    def _serve(self, found: Sequence[Socket]) -> float:
        """Run an iteration: read these sockets; return the seconds until there is more to do."""

    @abstractmethod
    def _tick(self) -> float:
        """Let the sinks send; this is the last call of all."""

    def _begin(self) -> None:
        self._is_stopped = False
        self._thread.start()

    @property
    def is_calling(self) -> bool:
        return self._sockets.reader == threading.get_ident()

    def _iterate(self, *, is_last: bool = False) -> float:
        """Run an iteration; no other thread reads meanwhile."""
        with self._iterating:
            self._sockets.reader = me = threading.get_ident()
            try:
                wait_s = self._tick() if is_last else self._serve([*self._sockets.unread])
                if me != self._leader:
                    self._own_thread_at = SYSTEM_CLOCK.now() + wait_s
                return wait_s
            finally:
                self._sockets.reader = 0

    def _run(self) -> None:
        while not self._is_stopped:
            self._sockets.wait(self._iterate())
        self._leading.acquire()  # for good
        self._iterate(is_last=True)

    def pump(self, ready: Callable[[], bool], seconds: float) -> None:
        me = threading.get_ident()
        if self._sockets.reader == me or not self._leading.acquire(blocking=False):
            return
        now = SYSTEM_CLOCK.now()
        until, look_at = now + seconds, math.inf
        try:
            self._leader = me
            self._sockets.take_over(now)
            while not (self._ends_pump or self._is_stopped or ready() or now >= until):
                self._sockets.wait_as_leader(min(look_at, until, now + LOOK_UP_S) - now)
                wait_s = self._iterate()
                now = SYSTEM_CLOCK.now()
                look_at = now + wait_s
        finally:
            self._leader, self._ends_pump = 0, False
            self._sockets.give_back()
            is_late = look_at < self._own_thread_at and not self._sockets.is_lent
            if self._sockets.unread or is_late:
                self._sockets.wake()
            self._leading.release()

    def wake_pump(self) -> None:
        if self._leader and self._sockets.reader != threading.get_ident():
            self._sockets.wake_leader()

    def end_pump(self) -> None:
        self._ends_pump = True
        if self._leader:
            self._sockets.wake_leader()

    def _stop(self) -> None:
        """End the loop on all threads after the present iteration, and wait for that."""
        if not self._is_stopped:
            self._is_stopped = True
            self._sockets.wake()
            self.wake_pump()
            self._thread.join()
