"""Bound the unread bytes of each connection of a node, and cut connections beyond it.

ZeroMQ reads ahead of the program, and offers no bound of that in bytes. A high-water mark counts
messages, whole ones only, and with heartbeats it aborts the process
(`docs/design/0009-back-pressure.md`). But the kernel counts the bytes of each tcp connection, and
ZeroMQ reports from which descriptor a message has come; the difference is the bytes that ZeroMQ
holds. A connection with too many is shut down through its descriptor, without ZeroMQ, to which the
other side seems to have hung up. There is no other way to end one connection of many.

Socket files (ipc) have no such count, but only this user can reach them.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ding_lite.parallel.transport.base import Lane, Link
from ding_lite.parallel.transport.chunks import MAX_MESSAGE_BYTES

MAX_PEER_BYTES = MAX_MESSAGE_BYTES + 256 * 2**20
"""Bytes that ZeroMQ may hold of one peer. A correct peer has fewer under way: one message
of the largest size, and the events that may be unacknowledged."""
MAX_UNFINISHED_BYTES = 64 * 2**20
"""Bytes that ZeroMQ may hold of one unfinished message, or of all connections together that have
not delivered a whole message yet. Messages above 8 MiB are sent in pieces."""
MAX_OF_A_PEER = 8
"""The most connections of one peer. It has two, and two further ones where both nodes dial or one
connects again; each takes a descriptor, without which this process cannot open a file."""
_SILENT = 16  # connections without a message, beside two of each peer
LOOK_EVERY_S = 0.1
"""Seconds between two checks while connections receive anything."""
_IDLE_LOOK_EVERY_S = 1.0
_FRAME_BYTES = 42  # the most that encryption and framing add to a frame
_RECEIVED_AT = 128  # in the kernel's `tcp_info`
_RECEIVED = struct.Struct("=Q")
_INFO_BYTES = _RECEIVED_AT + _RECEIVED.size


class Source(NamedTuple):
    """The origin of the messages of a dialled socket, or of one message of a listening one."""

    link: Link | None
    """None for a routing id that no node has."""
    lane: Lane
    route: bytes
    owner: int | None
    fd: int = -1
    """The descriptor of the connection; -1 if this node has dialled."""


@dataclass
class _Connection:
    inode: int
    """That of the descriptor, as the number of a closed descriptor may be reused."""
    is_tcp: bool
    source: Source | None = None
    """None before the first message."""
    base: int = 0  # bytes received when all of them had been read
    read: int = 0  # bytes read since then
    received: int = 0
    received_at: float = 0.0
    was_over: bool = False
    """Whether it may have held too much of an unfinished message at the last check."""

    @property
    def owner(self) -> int | None:
        return None if self.source is None else self.source.owner

    @property
    def held(self) -> int:
        return self.received - self.base - self.read


class Connections:
    """The connections of a node's sockets, by their descriptors.

    ZeroMQ may hold `max_peer_bytes` of one peer, and `max_total_bytes`, half of the memory, of all.
    """

    def __init__(self, *, num_peers: int = 0) -> None:
        self.num_peers = num_peers
        self.max_peer_bytes = MAX_PEER_BYTES
        self.max_total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        self._open: dict[int, _Connection] = {}
        self.of_routes: dict[bytes, int] = {}
        """The descriptors of the links and lanes that have delivered a message, or were dialled."""
        self._fresh: set[int] = set()
        self._settled: set[int] = set()
        self._has_drained = False
        self._left_behind: Counter[int | None] = Counter()
        self.num_tcp = 0
        self._look_at = 0.0

    def opened(self, fd: int, source: Source | None = None) -> None:
        with suppress(OSError), borrow(fd) as connection:
            inode = os.fstat(connection.fileno()).st_ino
            known = self._open.get(fd)
            if known is None or known.inode != inode:
                self.closed(fd)
                known = _Connection(inode, connection.family != socket.AF_UNIX)
                self._open[fd] = known
                self.num_tcp += known.is_tcp
            if source is not None:
                known.source, self.of_routes[source.route] = source, fd

    def closed(self, fd: int) -> None:
        known = self._open.pop(fd, None)
        if known is None:
            return
        self.num_tcp -= known.is_tcp
        self._left_behind[known.owner] += max(0, known.held)  # ZeroMQ still holds its messages
        if known.source is not None and self.of_routes.get(known.source.route) == fd:
            del self.of_routes[known.source.route]

    def note_read(self, source: Source, num_frames: int, num_bytes: int) -> None:
        fd = source.fd if source.fd >= 0 else self.of_routes.get(source.route, -1)
        known = self._open.get(fd)
        if known is None or known.source is None or known.source.route != source.route:
            self.opened(fd, source)  # it is the first one of a connection
            known = self._open.get(fd)
            if known is None:  # it is closed already
                return
        known.read += num_bytes + num_frames * _FRAME_BYTES
        self._fresh.add(fd)

    def received_at(self, route: bytes) -> float:
        known = self._open.get(self.of_routes.get(route, -1))
        return 0.0 if known is None else known.received_at

    def drained(self) -> None:
        self._has_drained = True
        self._left_behind.clear()
        self._settled |= self._fresh
        self._fresh.clear()

    def cut(self, route: bytes) -> None:
        fd = self.of_routes.get(route, -1)
        if fd in self._open:
            self._shut_down(fd)

    def check(self, now: float) -> tuple[float, list[str]]:
        """Cut connections with too many unread bytes; return the wait, and the reasons for cuts."""
        if not self.num_tcp:
            return math.inf, []
        if now < self._look_at:
            return self._look_at - now, []
        wait_s = LOOK_EVERY_S if self._measure(now) else _IDLE_LOOK_EVERY_S
        self._look_at = now + wait_s
        return wait_s, [*self._cut_unfinished(), *self._cut_largest(), *self.cut_surplus()]

    def _measure(self, now: float) -> bool:
        """Count the bytes of each connection; return whether any are new."""
        has_grown = False
        for fd, known in self._open.items():
            received = self._received(fd, known)
            if received != known.received:
                known.received, known.received_at, has_grown = received, now, True
            if fd in self._settled:  # bytes since then are not counted
                known.base, known.read = received, 0
        return has_grown

    def _received(self, fd: int, known: _Connection) -> int:
        if not known.is_tcp:
            return 0
        with suppress(OSError), borrow(fd, known.inode) as connection:
            return bytes_received(connection) or known.received
        return known.received

    def _cut_unfinished(self) -> Iterator[str]:
        """Cut connections with too much of an unfinished message.

        A connection has one if all whole messages were read since the last check, but none from it.
        """
        for fd, known in self._open.items():
            was_over, known.was_over = known.was_over, known.held > MAX_UNFINISHED_BYTES
            has_delivered = fd in self._fresh or fd in self._settled
            if was_over and known.was_over and self._has_drained and not has_delivered:
                self._shut_down(fd)
                yield (
                    f"A message of {_name(known.owner)} has more than {MAX_UNFINISHED_BYTES} "
                    f"bytes and does not end. The connection was cut."
                )
        self._settled.clear()
        self._has_drained = False

    def _cut_largest(self) -> Iterator[str]:
        sums = Counter(self._left_behind)
        for known in self._open.values():
            sums[known.owner] += known.held
        total = sum(sums.values())
        for owner in sorted(sums, key=sums.__getitem__, reverse=True):
            limit = MAX_UNFINISHED_BYTES if owner is None else self.max_peer_bytes
            if sums[owner] <= limit and total <= self.max_total_bytes:
                continue
            total -= sums[owner]
            of_owner = [fd for fd, known in self._open.items() if known.owner == owner]
            if not of_owner:  # all are cut already
                continue
            for fd in of_owner:
                self._shut_down(fd)
            yield (
                f"{sums[owner]} bytes of {_name(owner)} wait to be read; the limit is {limit}, and "
                f"{self.max_total_bytes} for all nodes. The connections were cut."
            )

    def cut_surplus(self) -> Iterator[str]:
        """Cut the oldest connections of a peer that has too many, and the newest silent ones.

        Which peer a connection belongs to is known from its first message. One of the two
        connections of a peer may never bring any.
        """
        of_owner: defaultdict[int | None, list[int]] = defaultdict(list)
        for fd, known in self._open.items():
            if known.is_tcp:
                of_owner[known.owner].append(fd)
        for owner, fds in of_owner.items():
            limit = MAX_OF_A_PEER if owner is not None else _SILENT + 2 * self.num_peers
            if len(fds) <= limit:
                continue
            for fd in fds[limit:] if owner is None else fds[:-limit]:
                self._shut_down(fd)
            yield (
                f"There were {len(fds)} connections of {_name(owner)}; the limit is {limit}. The "
                f"others were cut."
            )

    def _shut_down(self, fd: int) -> None:
        with suppress(OSError), borrow(fd, self._open[fd].inode) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def bytes_received(connection: socket.socket) -> int | None:
    """Return the received bytes of a tcp connection; None if the kernel does not count them."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:  # no tcp
        return None
    return int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0]) if len(info) == _INFO_BYTES else None


def borrow(fd: int, inode: int | None = None) -> socket.socket:
    """Make a socket from a copy of ZeroMQ's descriptor, so that it stays open meanwhile."""
    own = os.dup(fd)
    try:
        if inode is not None and os.fstat(own).st_ino != inode:
            raise OSError(errno.EBADF, "The descriptor was reused")
        return socket.socket(fileno=own)
    except OSError:  # it is no socket any more, or another one
        os.close(own)
        raise


def _name(owner: int | None) -> str:
    return "an unknown node" if owner is None else f"node {owner}"
