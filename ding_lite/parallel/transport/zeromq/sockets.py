"""Share ZeroMQ sockets between threads: one at a time reads, any may send.

Several threads may use a ZeroMQ socket if their uses cannot be reordered, so a lock guards each
use. The poller of ZeroMQ uses its sockets for as long as it waits, and a sender would wait as long.
So readers wait for the sockets' file descriptors instead, without using the sockets. But a
descriptor does not show that there is a message, only that something has happened since the socket
was last used; and each use of a socket, sending too, resets it. So after a send the socket is
checked for messages, and a reader is notified of them.

One thread always waits, and another one may take over for a while (`zeromq.reactor`). So all
descriptors are in one epoll. The other thread waits on it directly; the first thread waits through
a second epoll, in which one call switches the first epoll off and on. A thread that takes over
again soon, as in a conversation of two nodes, needs no such call: between two of its turns the
sockets stay with it. Otherwise the answer to its message would wake the first thread, which would
take the interpreter from it. The first thread then checks the sockets after each `GRACE_S`.
"""

from __future__ import annotations

import math
import os
import select
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar, cast

import zmq
from zmq.backend import Socket as BaseSocket, zmq_poll

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.parallel.transport.base import Frame

Socket: TypeAlias = "zmq.Socket[bytes]"
_T = TypeVar("_T")

GRACE_S = 0.002
"""A thread that takes over again within these seconds is in a conversation."""
_LONGEST_WAIT_S = 3_600.0
_AT_ONCE = 64
_COPY_BELOW = 64 * 1024
# As integers: pyzmq's enums cost as much as a call of ZeroMQ itself.
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)


class Sockets:
    """The sockets that one thread at a time reads from, and any thread sends through."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reader = 0
        self._epoll = select.epoll()
        self._own_epoll = select.epoll()
        self._own_epoll.register(self._epoll.fileno(), select.EPOLLIN)
        self._of_fds: dict[int, Socket] = {}
        self.unread: set[Socket] = set()
        """The sockets that may have messages to read; `wait` waits for the others."""
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Edge-triggered, so that writes need not be read.
        self._own_epoll.register(self._wake_fd, select.EPOLLIN | select.EPOLLET)
        self._leader_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._leader_fd, select.EPOLLIN)
        self._is_leader_woken = False
        self.is_led = False
        """Whether another thread has taken over."""
        self.is_lent = False
        """Whether the sockets stay with the threads that take over, one turn after the other."""
        self._taken_at = -math.inf
        # Re-entrant: a signal handler may call `wake` while the main thread holds it.
        self._wake_lock = threading.RLock()
        self._is_closed = False

    def add(self, socket: Socket) -> None:
        """Add a socket, before reading begins or on the thread that reads."""
        fd = int(socket.getsockopt(zmq.FD))
        self._of_fds[fd] = socket
        self.unread.add(socket)
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, socket: Socket) -> None:
        """Remove a socket, on the thread that reads, with `lock` held."""
        fd = int(socket.getsockopt(zmq.FD))
        del self._of_fds[fd]
        self.unread.discard(socket)
        self._epoll.unregister(fd)

    # -- from any thread -------------------------------------------------------------------

    def send(self, socket: Socket, messages: Iterable[Sequence[Frame]]) -> None:
        """Send messages one after the other; large frames are not copied."""
        with self.lock:
            try:
                for frames in messages:
                    _send(socket, frames)
            finally:  # a failed send may have consumed the event as well
                if zmq_poll([(socket, _READABLE)], 0):
                    self._note_unread(socket)

    @contextmanager
    def using(self, *sockets: Socket) -> Iterator[None]:
        """Keep other threads off the sockets while these are used."""
        with self.lock:
            try:
                yield
            finally:
                for socket in sockets:
                    if self.is_readable(socket):
                        self._note_unread(socket)

    def _note_unread(self, socket: Socket) -> None:
        """Note that there is a message to read, which the descriptor may not show."""
        self.unread.add(socket)
        will_look = self.is_lent and not self.is_led  # within `GRACE_S`
        if not will_look and threading.get_ident() != self.reader:
            self.wake()

    def wake(self) -> None:
        with self._wake_lock:
            if not self._is_closed:
                os.eventfd_write(self._wake_fd, 1)

    def wake_leader(self) -> None:
        with self._wake_lock:
            if not self._is_closed:
                self._is_leader_woken = True
                os.eventfd_write(self._leader_fd, 1)

    # -- from the thread that reads ----------------------------------------------------------

    def wait(self, seconds: float) -> None:
        longest = GRACE_S if self.is_lent else _LONGEST_WAIT_S
        seconds = 0.0 if self.unread else min(max(0.0, seconds), longest)
        signs = self._own_epoll.poll(seconds, _AT_ONCE)
        has_come = any(fd != self._wake_fd for fd, _ in signs)
        if self.is_lent:
            if SYSTEM_CLOCK.now() - self._taken_at >= GRACE_S:
                self.is_lent = False  # before the next line, so that `give_back` may rely on it
                if not self.is_led:
                    self._own_epoll.modify(self._epoll.fileno(), select.EPOLLIN)
            has_come = has_come or not self.is_led
        if has_come:
            self._note(self._epoll.poll(0.0, _AT_ONCE))

    def take_over(self, now: float) -> None:
        """Make `wait` ignore the sockets until `give_back`."""
        self.is_led = True
        is_soon, self._taken_at = now - self._taken_at < GRACE_S, now
        if not self.is_lent:
            self._own_epoll.modify(self._epoll.fileno(), 0)
            if is_soon:
                self.is_lent = True
                self.wake()

    def wait_as_leader(self, seconds: float) -> None:
        signs = self._epoll.poll(0.0 if self.unread else max(0.0, seconds), _AT_ONCE)
        if signs:
            self._note(signs)

    def give_back(self) -> None:
        """Make `wait` watch the sockets again, soon."""
        if self._is_leader_woken:
            self._clear_leader_wakeup()
        self.is_led = False
        if not self.is_lent:
            self._own_epoll.modify(self._epoll.fileno(), select.EPOLLIN)

    def _note(self, signs: list[tuple[int, int]]) -> None:
        with self.lock:
            for fd, _ in signs:
                if fd == self._leader_fd:
                    self._clear_leader_wakeup()
                elif fd in self._of_fds:  # else it was removed a moment ago
                    self.unread.add(self._of_fds[fd])

    def _clear_leader_wakeup(self) -> None:
        with self._wake_lock:
            if self._is_leader_woken:
                self._is_leader_woken = False
                os.eventfd_read(self._leader_fd)

    def take(self, socket: Socket, read: Callable[[], _T], *, check: bool = True) -> _T | None:
        """Call `read` if there is a message; return None if not, or if it raises zmq.Again.

        Until then `wait` returns at once, and the socket stays in `unread`. To `check` first is
        cheaper if there is often no message.
        """
        with self.lock:
            if not check or self.is_readable(socket):
                try:  # `suppress` would cost each message more
                    return read()
                except zmq.Again:
                    pass
            self.unread.discard(socket)
            return None

    def is_readable(self, socket: Socket) -> bool:
        """Tell whether there is a message; with `lock` held."""
        # This takes half the time of `getsockopt`, which looks up each option in an enum.
        return bool(zmq_poll([(socket, _READABLE)], 0))

    def close(self) -> None:
        with self._wake_lock:
            self._is_closed = True
            self._own_epoll.close()
            self._epoll.close()
            os.close(self._wake_fd)
            os.close(self._leader_fd)


_send_frame: Callable[[Socket, Frame, int, bool], object] = cast(
    Any, BaseSocket
).send  # without pyzmq's wrapper, which only forwards the call


def _send(socket: Socket, frames: Sequence[Frame]) -> None:
    left = len(frames)
    try:
        for frame in frames:
            left -= 1
            _send_frame(socket, frame, _MORE if left else _LAST, len(frame) < _COPY_BELOW)
    except zmq.ZMQError:  # of the first frame: the others cannot fail
        raise
    except BaseException:  # an interrupt: the next message must not become a part of this one
        socket.send(b"", _LAST)
        raise
