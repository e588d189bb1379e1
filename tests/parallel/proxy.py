"""A TCP proxy on loopback that a test can cut, block and slow down.

The nodes' links run through it, so a test is the network between them. One thread moves all
bytes. What a blackhole swallows is not lost but late, as with TCP itself, which sends again
what was not acknowledged: all of it comes out when the wire has healed.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Self

from ding_lite.parallel.network.address import Address

UP, DOWN = "up", "down"
"""The directions of a connection: from the dialling end, and back."""
_PIECE = 65_536
_BURST_S = 0.005
_RESET = struct.pack("ii", 1, 0)


class _Way:
    """One direction of a connection: bytes that were read and are to be written."""

    def __init__(self, name: str, source: socket.socket, sink: socket.socket) -> None:
        self.name, self.source, self.sink = name, source, sink
        self.pieces: deque[tuple[float, bytes]] = deque()
        """Bytes with the instant from which they may be written; empty bytes are the end."""
        self.is_read_out = False
        self.ready_at = 0.0

    def push(self, piece: bytes, due: float) -> None:
        self.pieces.append((due, piece))
        self.is_read_out = not piece

    def pop(self, most: int) -> bytes:
        due, piece = self.pieces.popleft()
        if len(piece) > most:
            self.pieces.appendleft((due, piece[most:]))
        return piece[:most]

    def put_back(self, piece: bytes) -> None:
        self.pieces.appendleft((0.0, piece))

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next write; None if there is nothing to write."""
        if not self.pieces:
            return None
        return max(0.0, self.pieces[0][0] - now, self.ready_at - now)


class Proxy:
    """An address to dial instead of a node's own.

    Args:
        target: Where the node listens; "" if it does not listen yet, as behind `ssh -L`.
        turns_away: What becomes of connections without a target: it "closes" or "resets" each,
            "stays silent", or "hears, then closes".
    """

    def __init__(self, target: str, *, turns_away: str = "closes") -> None:
        self._target = ("", 0)
        if target:
            self.lead_to(target)
        self._turns_away = turns_away
        self._turned_away: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.setblocking(False)
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.num_bytes = {UP: 0, DOWN: 0}
        """The number of bytes written to the other end."""
        self.num_connections = 0
        """The number of connections so far."""

        self._closed: frozenset[str] = frozenset()
        self._delay_s = 0.0
        self._piece = _PIECE
        self._bytes_per_s = float("inf")
        self._cuts: dict[str, tuple[int, bool]] = {}
        self._cut_now: bool | None = None
        self._ways: dict[socket.socket, _Way] = {}
        self._changed = threading.Condition()
        self._wake_r, self._wake_w = os.pipe()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    # -- what a test may do to the wire --------------------------------------------------

    def lead_to(self, target: str) -> None:
        """Forward the connections from now on."""
        place = Address.parse(target)
        self._target = place.place, place.port

    @property
    def num_turned_away(self) -> int:
        return len(self._turned_away)

    def blackhole(self, *ways: str) -> None:
        """Block the bytes of all current and new connections, in both directions by default."""
        with self._changing():
            self._closed = frozenset(ways or (UP, DOWN))

    def delay(self, seconds: float) -> None:
        """Delay all bytes."""
        with self._changing():
            self._delay_s = seconds

    def split(self, num_bytes: int = 1) -> None:
        """Write at most so many bytes at a time."""
        with self._changing():
            self._piece = num_bytes

    def throttle(self, bytes_per_s: float) -> None:
        """Limit the rate of each direction of each connection."""
        with self._changing():
            self._bytes_per_s = bytes_per_s

    def heal(self) -> None:
        """Remove all faults."""
        with self._changing():
            self._closed, self._delay_s, self._piece = frozenset(), 0.0, _PIECE
            self._bytes_per_s = float("inf")

    def cut(self, *, reset: bool = True) -> None:
        """Break all connections now; new ones are accepted."""
        with self._changing():
            self._cut_now = reset
            self._changed.wait_for(lambda: self._cut_now is None)

    def cut_after(self, num_bytes: int, way: str = UP, *, reset: bool = True) -> None:
        """Break all connections after so many further bytes in that direction."""
        with self._changing():
            self._cuts[way] = self.num_bytes[way] + num_bytes, reset

    def wait(self, ready: Callable[[Proxy], bool], timeout: float = 15.0) -> None:
        """Wait for a condition on the proxy."""
        with self._changed:
            assert self._changed.wait_for(lambda: ready(self), timeout)

    def wait_for_cut(self) -> None:
        """Wait until every requested cut has been made."""
        self.wait(lambda proxy: not proxy._cuts)

    def close(self) -> None:
        with self._changing():
            self._is_over = True
        self._thread.join()
        for one in (self._listener, *self._turned_away):
            one.close()
        for fd in (self._wake_r, self._wake_w):
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._changed:
            os.write(self._wake_w, b"w")
            yield

    # -- the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_over:
            with self._changed:
                if self._cut_now is not None:
                    self._break_all(self._cut_now)
                wait_s, reading, writing = self._write_all()
            ready = self._select(wait_s, reading, writing)
            with self._changed:
                if self._listener in ready:
                    self._accept()
                for source in reading & ready:
                    if source in self._ways:
                        self._read(self._ways[source])
        with self._changed:
            self._break_all(reset=False)

    def _select(
        self, wait_s: float | None, reading: set[socket.socket], writing: set[socket.socket]
    ) -> set[object]:
        """Wait for I/O or a deadline; return the ready sockets."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_r, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            for one in reading | writing:
                selector.register(one, (one in reading) | 2 * (one in writing))
            ready: set[object] = {key.fileobj for key, _ in selector.select(wait_s)}
        if self._wake_r in ready:
            os.read(self._wake_r, 4096)
        return ready

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        if not self._target[0]:
            self._turn_away(near)
            return
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        for one in (near, far):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ways[near] = _Way(UP, near, far)
        self._ways[far] = _Way(DOWN, far, near)
        self.num_connections += 1
        self._changed.notify_all()

    def _turn_away(self, connection: socket.socket) -> None:
        if self._turns_away == "hears, then closes":
            connection.recv(64)
        if self._turns_away == "resets":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if self._turns_away != "stays silent":
            connection.close()
        self._turned_away.append(connection)
        self._changed.notify_all()

    def _read(self, way: _Way) -> None:
        try:
            way.push(way.source.recv(_PIECE), monotonic() + self._delay_s)
        except BlockingIOError:
            return
        except OSError:
            self._break(way, reset=True)

    def _write_all(self) -> tuple[float | None, set[socket.socket], set[socket.socket]]:
        """Write what is due; return the seconds to wait, and the sockets to wait for."""
        waits: list[float] = []
        reading, writing = set(), set()
        now = monotonic()
        for way in list(self._ways.values()):
            if way.name in self._closed or way.source not in self._ways:
                continue
            if self._write(way, now):
                writing.add(way)
            elif (wait_s := way.wait_s(now)) is not None:
                waits.append(wait_s)
            if not way.is_read_out and (self._delay_s or not way.pieces):
                reading.add(way)
        open_ways = self._ways.values()
        return (
            min(waits, default=None),
            {way.source for way in reading if way in open_ways},
            {way.sink for way in writing if way in open_ways},
        )

    def _write(self, way: _Way, now: float) -> bool:
        """Write what is due; return whether the socket buffer is full."""
        budget = min(_PIECE, self._bytes_per_s * _BURST_S + 1)
        try:
            while budget >= 1 and way.wait_s(now) == 0.0:
                most = min(self._piece, int(budget))
                if way.name in self._cuts:
                    most = min(most, self._cuts[way.name][0] - self.num_bytes[way.name])
                piece = way.pop(most)
                if not piece:
                    self._break(way, reset=False)
                    return False
                try:
                    num_sent = way.sink.send(piece)
                except BlockingIOError:
                    way.put_back(piece)
                    return True
                if num_sent < len(piece):
                    way.put_back(piece[num_sent:])
                self.num_bytes[way.name] += num_sent
                budget -= num_sent
                way.ready_at = max(way.ready_at, now) + num_sent / self._bytes_per_s
                if self.num_bytes[way.name] == self._cuts.get(way.name, (-1, False))[0]:
                    self._break_all(self._cuts[way.name][1])
                    return False
        except OSError:
            self._break(way, reset=True)
        self._changed.notify_all()
        return False

    def _break_all(self, reset: bool) -> None:
        for way in list(self._ways.values()):
            self._break(way, reset)
        self._cuts.clear()
        self._cut_now = None
        self._changed.notify_all()

    def _break(self, way: _Way, reset: bool) -> None:
        for one in (way.source, way.sink):
            self._ways.pop(one, None)
            if reset:
                with suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            one.close()
