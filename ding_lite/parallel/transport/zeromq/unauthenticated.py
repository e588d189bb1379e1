"""Limit the connections that have not proved to hold a key yet.

ZeroMQ accepts every connection, keeps it for as long as a handshake may take, and accepts frames as
large as those of messages; it offers no limit before the handshake is over. But a process has one
table of descriptors, so an attacker could prevent it from opening a file. The kernel counts the
bytes of each connection: a connection that was sent this node's last part of the handshake has
proved its key, and no handshake takes more than a few hundred bytes. Connections above the limit,
the oldest first, and those that send too much are shut down through their descriptors, without
ZeroMQ.

They must be found faster than they arrive, and ZeroMQ's monitor is too slow to read while another
thread computes (5 ms each). So all descriptors are checked, by calls of the C library that keep the
interpreter lock: about a microsecond each. A descriptor is shut down through a spare one, which is
open from the start, because no copy can be made when the table is full.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import resource
import socket
import weakref
from collections.abc import Iterator
from time import monotonic
from typing import NamedTuple

from ding_lite.parallel.memory.pool import give_back_freed_memory

MAX_HANDSHAKE_BYTES = 4096
"""Bytes that a connection may send before it has proved its key; a node sends less than 600."""
MAX_UNAUTHENTICATED = 256
"""Connections that may be in the handshake at a time, if there are enough descriptors."""
MIN_DESCRIPTORS = 4096
"""Descriptors that a process with a reachable port should be allowed to have."""
LOOK_EVERY_S = 0.02
_SOONEST_S = 0.002
_TRIM_EVERY_S = 1.0
_PAUSE_PER_LOOK = 10  # times as long as a check, where there are many descriptors
_SHARE_OF_DESCRIPTORS = 8
_OF_A_PEER = 4  # two connections, and two anew before the old ones are gone
_PROVED_BYTES = 264
"""This node's greeting of 64 bytes, its WELCOME of 170 and a part of READY, which comes last."""
_GAP = 256  # unused numbers in a row after which there are no descriptors: the lowest come first
_LISTENS = 10

_C = ctypes.PyDLL(None, use_errno=True)  # unlike `CDLL` it keeps the interpreter lock


class _Info(ctypes.Structure):
    _fields_ = (
        ("state", ctypes.c_uint8),
        ("_between", ctypes.c_uint8 * 119),
        ("acknowledged", ctypes.c_uint64),
        ("received", ctypes.c_uint64),
        ("_further", ctypes.c_uint8 * 64),
        ("sent", ctypes.c_uint64),
        ("sent_again", ctypes.c_uint64),
    )

    def answered(self, size: int) -> int:
        """Return the bytes that this side has sent; before Linux 4.19 those acknowledged."""
        return int(self.sent - self.sent_again if size == _INFO_BYTES else self.acknowledged)


_INFO_BYTES = ctypes.sizeof(_Info)
_LEAST_INFO_BYTES = 136


class _Place(ctypes.Structure):
    """An IPv4 or IPv6 address of the kernel."""

    _fields_ = (
        ("family", ctypes.c_uint16),
        ("port", ctypes.c_uint16.__ctype_be__),
        ("rest", ctypes.c_uint8 * 28),
    )


class _PendingConnection(NamedTuple):
    name: bytes  # the address of the other side, unique among open connections
    answered: int
    received: int


class UnauthenticatedConnections:
    """The connections to a port of this process that are in the handshake.

    At most `limit` may be open at a time; by default a share of the descriptors of this process.
    """

    def __init__(self, port: int, num_peers: int, *, limit: int | None = None) -> None:
        self.limit = _share(num_peers) if limit is None else limit
        self._port = port
        self._names: dict[int, bytes] = {}
        self._proved: dict[int, bytes] = {}
        self._cut: dict[int, bytes] = {}
        self._looked_at = self._look_at = self._freed_at = self._trimmed_at = -math.inf
        self._look_s = 0.0
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, _close, self._null, self._spare)

    def __len__(self) -> int:
        return len(self._names)

    def check(self, *, has_come: bool = False) -> tuple[float, list[int], list[str]]:
        """Cut connections above the limit, or with too many bytes; `has_come` if some may be new.

        Returns:
            The seconds until the next check, the descriptors of connections that have proved a key
            since the last one, and the reasons for cuts.
        """
        now = monotonic()
        if has_come:
            soonest = self._looked_at + max(_SOONEST_S, self._look_s)
            self._look_at = min(self._look_at, soonest)
        if now < self._look_at:
            return self._look_at - now, [], []
        if not (self._names or self._cut or self._has_freed or has_come):
            return math.inf, [], []
        found = dict(self._connections())
        proved = {fd: one.name for fd, one in found.items() if one.answered >= _PROVED_BYTES}
        new = [fd for fd, name in proved.items() if self._proved.get(fd) != name]
        self._proved = proved
        for each in (self._names, self._cut):
            for fd in [fd for fd in each if fd not in found or found[fd].name != each[fd]]:
                del each[fd]
                self._freed_at = now
        here = dict.fromkeys([*self._names, *found])  # the oldest first
        self._names = {
            fd: found[fd].name for fd in here if fd not in proved and fd not in self._cut
        }
        reasons = self._cut_excess(found)
        self._looked_at = monotonic()
        self._look_s = self._looked_at - now
        if self._has_freed and now - self._trimmed_at >= _TRIM_EVERY_S:
            self._trimmed_at = now
            give_back_freed_memory()
        if not (self._names or self._cut or self._has_freed):
            self._look_at = -math.inf
            return math.inf, new, reasons
        pause_s = max(LOOK_EVERY_S, _PAUSE_PER_LOOK * self._look_s)
        self._look_at = self._looked_at + pause_s
        return pause_s, new, reasons

    @property
    def _has_freed(self) -> bool:
        """Whether ZeroMQ may hold freed memory: it frees a moment after it has closed."""
        return self._freed_at + _TRIM_EVERY_S > self._trimmed_at

    def _cut_excess(self, found: dict[int, _PendingConnection]) -> list[str]:
        """Cut connections with too many bytes, and the oldest: a handshake takes milliseconds."""
        reasons = []
        for fd in [*self._names]:
            if found[fd].received > MAX_HANDSHAKE_BYTES:
                self._end(fd)
                reasons.append(
                    f"A connection has brought {found[fd].received} bytes without proving that it "
                    f"has a key; a handshake has less than {MAX_HANDSHAKE_BYTES}. It was cut."
                )
        num_left = len(self._names)
        if num_left > self.limit:
            for fd in [*self._names][: num_left - self.limit]:
                self._end(fd)
            reasons.append(
                f"{num_left} connections had not proved that they have a key; the limit is "
                f"{self.limit}. The oldest were cut."
            )
        return reasons

    def _end(self, fd: int) -> None:
        self._cut[fd] = name = self._names.pop(fd)
        if _C.dup2(fd, self._spare) == self._spare:
            if _name_of(self._spare) == name:  # else it was closed, and the number reused
                _C.shutdown(self._spare, socket.SHUT_RDWR)
            _C.dup2(self._null, self._spare)

    def _connections(self) -> Iterator[tuple[int, _PendingConnection]]:
        info, size, place, room = _Info(), ctypes.c_uint32(), _Place(), ctypes.c_uint32()
        at = ctypes.byref(info), ctypes.byref(size), ctypes.byref(place), ctypes.byref(room)
        tcp, tcp_info, port = int(socket.IPPROTO_TCP), int(socket.TCP_INFO), self._port
        fd = num_missing = 0
        while num_missing < _GAP:
            size.value, room.value = _INFO_BYTES, ctypes.sizeof(place)
            if _C.getsockopt(fd, tcp, tcp_info, at[0], at[1]):
                num_missing = num_missing + 1 if ctypes.get_errno() == errno.EBADF else 0
            else:
                num_missing = 0
                is_open = size.value >= _LEAST_INFO_BYTES and info.state != _LISTENS
                if is_open and not _C.getsockname(fd, at[2], at[3]) and place.port == port:
                    answered = info.answered(size.value)
                    yield fd, _PendingConnection(_name_of(fd), answered, info.received)
            fd += 1


def _name_of(fd: int) -> bytes:
    place, room = _Place(), ctypes.c_uint32(ctypes.sizeof(_Place))
    _C.getpeername(fd, ctypes.byref(place), ctypes.byref(room))
    return bytes(place)


def make_room_for_descriptors() -> None:
    """Raise the limit of open files to `MIN_DESCRIPTORS`, if the system allows it.

    ZeroMQ accepts about two thousand connections before any of them can be cut.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MIN_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MIN_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_descriptors() -> None:
    """Raise OSError unless this process can open two more files, as a peer takes for its lanes.

    ZeroMQ tries in vain to connect, and reports nothing, if it can open no file.
    """
    _close(*os.pipe())


def _share(num_peers: int) -> int:
    """Return how many connections may be in the handshake: at least those of all peers."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = MAX_UNAUTHENTICATED if soft == resource.RLIM_INFINITY else soft // _SHARE_OF_DESCRIPTORS
    return max(min(share, MAX_UNAUTHENTICATED), _OF_A_PEER * num_peers)


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
