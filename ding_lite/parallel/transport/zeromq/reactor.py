"""Who reads: the transport's own thread, or another one that waits for a message anyway.

A message that one thread reads and another one waits for changes threads on its way, and mostly
cores with them; the interpreter's memory has to follow, which takes longer than all that is done
with a small message. So a thread that waits may lead: it reads by itself until it has what it waits
for (leader and followers: Schmidt et al. 2000, "Leader/Followers: a design pattern for efficient
multi-threaded event demultiplexing"). The own thread sleeps through that, but for what is due and
for `wake`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TypeVar

from ding_lite.clock import LOOK_UP_S, SYSTEM_CLOCK
from ding_lite.parallel.transport.zeromq.sockets import Socket, Sockets

ResultT = TypeVar("ResultT")


class Turns:
    """The turns at reading, which threads take one after the other.

    Args:
        sockets: What is read.
        serve: Does what there is to do in a turn: hands on what has come at these sockets, and
            returns the seconds until there is more to do.
    """

    def __init__(self, sockets: Sockets, serve: Callable[[list[Socket]], float]) -> None:
        self._sockets = sockets
        self._serve = serve
        self._turn = threading.Lock()
        self._leading = threading.Lock()
        self._leader = 0
        self._own_thread_at = -math.inf
        """When the own thread looks by itself, at the latest."""
        self._has_ended = False

    @property
    def is_mine(self) -> bool:
        """Whether this thread is in a turn."""
        return self._sockets.reader == threading.get_ident()

    def take(self, do: Callable[[], ResultT]) -> ResultT:
        """Do something in a turn: nobody else reads meanwhile."""
        with self._turn:
            self._sockets.reader = threading.get_ident()
            try:
                return do()
            finally:
                self._sockets.reader = 0

    def go_on(self) -> None:
        """Read on the own thread until `end` is called, and nobody else does either."""
        while not self._has_ended:
            self._sockets.wait(self.take(self._serve_and_plan))
        self._leading.acquire()  # for good: nobody leads from now on

    def _serve_and_plan(self) -> float:
        """Serve, and note in the same turn when this thread will, so that who leads can tell."""
        wait_s = self._serve(self._sockets.unread)
        self._own_thread_at = SYSTEM_CLOCK.now() + wait_s
        return wait_s

    def lead(self, ready: Callable[[], bool], seconds: float) -> None:
        """Read until `ready()`, or until the time is over; at once return if another one leads.

        Args:
            ready: Asked after each turn and when roused.
            seconds: How long at most.
        """
        now = SYSTEM_CLOCK.now()
        until, look_at = now + seconds, math.inf
        if self.is_mine or not self._leading.acquire(blocking=False):
            return
        try:
            self._leader = threading.get_ident()
            self._sockets.take_over()
            while not (ready() or self._has_ended or now >= until):
                self._sockets.wait_instead(min(look_at, until, now + LOOK_UP_S) - now)
                wait_s = self.take(lambda: self._serve(self._sockets.unread))
                now = SYSTEM_CLOCK.now()
                look_at = now + wait_s
        finally:
            self._leader = 0
            self._sockets.give_back()
            if self._sockets.unread or look_at < self._own_thread_at:
                self._sockets.wake()
            self._leading.release()

    def rouse(self) -> None:
        """Make who leads ask again whether it is ready; safe from any thread."""
        if self._leader and not self.is_mine:
            self._sockets.rouse()

    def end(self) -> None:
        """Let nobody read any more once the turns under way are over; safe from any thread."""
        self._has_ended = True
        self._sockets.wake()
        self.rouse()
