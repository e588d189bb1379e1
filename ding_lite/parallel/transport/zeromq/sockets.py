"""ZeroMQ's sockets, used by several threads: one at a time reads, any may send.

What is ugly here and why: a socket of ZeroMQ may move from thread to thread if nothing of the
one's use of it can be reordered with the other's; so a lock stands around each use. The poller of
ZeroMQ uses its sockets for as long as it waits, and a sender would wait as long. So readers
wait for the sockets' file descriptors instead, which they can do without touching the sockets. But
a descriptor does not say that a message is there, only that the socket has not looked since
something has happened; and whatever is done with a socket, sending too, makes it look. So who has
sent asks the socket for what it has seen, and passes that on to a reader.

One thread waits for all its life, and another one may take over for a while (`zeromq.reactor` tells
why). So all descriptors are in one epoll, which that other one waits for by itself, and the first
one by a second epoll, in which the first can be switched off and on by one call.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

import zmq

from ding_lite.parallel.transport.base import Frame

Socket: TypeAlias = "zmq.Socket[bytes]"
ReadT = TypeVar("ReadT")

_LONGEST_WAIT_S = 3_600.0
_AT_ONCE = 64
_COPY_BELOW = 64 * 1024
# As integers: pyzmq's enums cost as much as a call of ZeroMQ itself.
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_READABLE = int(zmq.POLLIN)


class Sockets:
    """The sockets that one thread at a time reads from, and any thread sends through."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held during each use of a socket."""
        self.reader = 0
        """Which thread reads at this moment, if any does."""
        self._epoll = select.epoll()
        self._own_epoll = select.epoll()
        self._own_epoll.register(self._epoll.fileno(), select.EPOLLIN)
        self._of_fds: dict[int, Socket] = {}
        self._unread: set[Socket] = set()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Each write is an edge: nobody need read it.
        self._own_epoll.register(self._wake_fd, select.EPOLLIN | select.EPOLLET)
        self._leader_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._leader_fd, select.EPOLLIN)
        self._is_leader_woken = False
        # Re-entrant: a signal may come while the main thread holds it, and its handler may wake.
        self._wake_lock = threading.RLock()
        self._is_closed = False

    def add(self, socket: Socket) -> None:
        """Read from a socket too; before the reading begins, or by who reads."""
        fd = int(socket.getsockopt(zmq.FD))
        self._of_fds[fd] = socket
        self._unread.add(socket)
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, socket: Socket) -> None:
        """Read from a socket no more; by who reads, with `lock` held."""
        fd = next(fd for fd, known in self._of_fds.items() if known is socket)
        del self._of_fds[fd]
        self._unread.discard(socket)
        self._epoll.unregister(fd)

    # -- from any thread -------------------------------------------------------------------

    def send(self, socket: Socket, messages: Iterable[Sequence[Frame]]) -> None:
        """Send messages one after the other; large frames are not copied.

        Raises:
            zmq.ZMQError: A message was not taken.
        """
        with self.lock:
            try:
                for frames in messages:
                    self._send(socket, frames)
            finally:  # what has failed may have used up the sign as well
                self._look(socket)

    @contextmanager
    def using(self, *sockets: Socket) -> Iterator[None]:
        """Let nobody else use the sockets while something else is done with these."""
        with self.lock:
            try:
                yield
            finally:
                for socket in sockets:
                    self._look(socket)

    def _look(self, socket: Socket) -> None:
        """Note whether there is something to read, of which the descriptor may not tell now."""
        if int(socket.getsockopt(_EVENTS)) & _READABLE:
            self._unread.add(socket)
            if threading.get_ident() != self.reader:
                self.wake()

    def _send(self, socket: Socket, frames: Sequence[Frame]) -> None:
        left = len(frames)
        try:
            for frame in frames:
                left -= 1
                socket.send(frame, _MORE if left else _LAST, len(frame) < _COPY_BELOW)
        except zmq.ZMQError:  # of the first frame: the others cannot fail
            raise
        except BaseException:  # an interrupt: what follows must not become a part of this message
            socket.send(b"", _LAST)
            raise

    def wake(self) -> None:
        """Let the wait of the own thread end now."""
        with self._wake_lock:
            if not self._is_closed:
                os.eventfd_write(self._wake_fd, 1)

    def wake_leader(self) -> None:
        """Let the wait of who has taken over end now, or the next one at once."""
        with self._wake_lock:
            if not self._is_closed:
                self._is_leader_woken = True
                os.eventfd_write(self._leader_fd, 1)

    # -- from a reader's -------------------------------------------------------------------

    @property
    def unread(self) -> list[Socket]:
        """The sockets that may have something to read, as far as that is known."""
        return [*self._unread]

    def wait(self, seconds: float) -> None:
        """Wait on the own thread: until something has come, `wake`, or the time is over."""
        for fd, _ in self._own_epoll.poll(self._longest(seconds), _AT_ONCE):
            if fd != self._wake_fd:
                self._note(self._epoll.poll(0.0, _AT_ONCE))

    def take_over(self) -> None:
        """Let `wait` overlook what comes, until `give_back`."""
        self._own_epoll.modify(self._epoll.fileno(), 0)

    def wait_as_leader(self, seconds: float) -> None:
        """Wait having taken over: until something has come, `wake_leader`, or the time is over."""
        self._note(self._epoll.poll(self._longest(seconds), _AT_ONCE))

    def give_back(self) -> None:
        """Let `wait` heed what comes, and what has come meanwhile."""
        if self._is_leader_woken:
            self._clear_leader_wakeup()
        self._own_epoll.modify(self._epoll.fileno(), select.EPOLLIN)

    def _longest(self, seconds: float) -> float:
        """Return how long to wait with what is known."""
        return 0.0 if self._unread else min(max(0.0, seconds), _LONGEST_WAIT_S)

    def _note(self, signs: list[tuple[int, int]]) -> None:
        with self.lock:
            for fd, _ in signs:
                if fd == self._leader_fd:
                    self._clear_leader_wakeup()
                elif fd in self._of_fds:  # else it was removed a moment ago
                    self._unread.add(self._of_fds[fd])

    def _clear_leader_wakeup(self) -> None:
        with self._wake_lock:
            if self._is_leader_woken:
                self._is_leader_woken = False
                os.eventfd_read(self._leader_fd)

    def read(self, socket: Socket, read: Callable[[], ReadT], *, look: bool = True) -> ReadT | None:
        """Call what reads a message from a socket, if there is one; return None if not.

        Until it does, `wait` does not wait, and returns the socket again.

        Args:
            socket: Which.
            read: Raises zmq.Again where there is none.
            look: Whether to look first, which is cheaper where there may well be none.
        """
        with self.lock:
            if not look or int(socket.getsockopt(_EVENTS)) & _READABLE:
                try:  # as `suppress` does, which each message would pay for
                    return read()
                except zmq.Again:
                    pass
            self._unread.discard(socket)
            return None

    def close(self) -> None:
        """Let go of all but the sockets themselves."""
        with self._wake_lock:
            self._is_closed = True
            self._own_epoll.close()
            self._epoll.close()
            os.close(self._wake_fd)
            os.close(self._leader_fd)
