"""A TCP proxy on loopback that a test can cut, block and slow down.

The nodes' links run through it, so a test is the network between them. An event loop on one thread
moves all bytes. What a blackhole swallows is not lost but late, as with TCP itself, which sends
again what was not acknowledged: all of it comes out when the wire has healed.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Self

from ding_lite.parallel.network.address import Address

UP, DOWN = "up", "down"
"""The directions of a connection: from the dialling end, and back."""
_PIECE = 65_536
_MOST_READ = 2**22
"""Bytes that are read at once: what has come while earlier ones were delayed."""
_BURST_S = 0.005
_LATE_S = 0.1
"""How late a write may be for the next one to make up for it."""
_RESET = struct.pack("ii", 1, 0)


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
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        self.num_turned_away = 0
        self.num_bytes = {UP: 0, DOWN: 0}
        self.num_connections = 0

        self._closed: frozenset[str] = frozenset()
        self._delay_s = 0.0
        self._piece = _PIECE
        self._bytes_per_s = float("inf")
        self._cuts: dict[str, tuple[int, bool]] = {}
        self._writers: set[StreamWriter] = set()
        self._changed = threading.Condition()
        self._has_healed = asyncio.Event()
        self._is_over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        run, serve = self._loop.run_until_complete, self._serve(listener)
        self._thread = threading.Thread(target=run, args=[serve], name="proxy", daemon=True)
        self._thread.start()

    def lead_to(self, target: str) -> None:
        """Forward the connections from now on."""
        place = Address.parse(target)
        self._target = place.place, place.port

    def blackhole(self, *ways: str) -> None:
        """Block the bytes of all current and new connections, in both directions by default."""
        self._closed = frozenset(ways or (UP, DOWN))

    def delay(self, seconds: float) -> None:
        """Delay all bytes by at least so long."""
        self._delay_s = seconds

    def split(self, num_bytes: int = 1) -> None:
        """Write at most so many bytes at a time."""
        self._piece = num_bytes

    def throttle(self, bytes_per_s: float) -> None:
        """Limit the rate of each direction of each connection."""
        self._bytes_per_s = bytes_per_s

    def heal(self) -> None:
        self._closed, self._delay_s, self._piece = frozenset(), 0.0, _PIECE
        self._bytes_per_s = float("inf")
        self._loop.call_soon_threadsafe(self._has_healed.set)

    def cut(self, *, reset: bool = True) -> None:
        """Break all connections now; new ones are accepted."""

        async def cut() -> None:
            self._break_all(reset)
            await asyncio.sleep(0.0)

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result()

    def cut_after(self, num_bytes: int, way: str = UP, *, reset: bool = True) -> None:
        """Break all connections after so many further bytes in that direction."""
        with self._changed:
            self._cuts[way] = self.num_bytes[way] + num_bytes, reset

    def wait(self, ready: Callable[[Proxy], bool], timeout: float = 15.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: ready(self), timeout)

    def wait_for_cut(self) -> None:
        self.wait(lambda proxy: not proxy._cuts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._accept, sock=listener, limit=_MOST_READ)
        await self._is_over.wait()
        server.close()
        self._break_all(reset=False)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.0)  # until all sockets are closed

    async def _accept(self, near: StreamReader, to_near: StreamWriter) -> None:
        self._writers.add(to_near)
        if not self._target[0]:
            await self._turn_away(near, to_near)
            return
        try:
            far, to_far = await asyncio.open_connection(*self._target, limit=_MOST_READ)
        except OSError:
            self._break(to_near, reset=False)
            return
        self._writers.add(to_far)
        with self._changed:
            self.num_connections += 1
            self._changed.notify_all()
        up, down = (near, to_near, to_far), (far, to_far, to_near)
        await asyncio.gather(self._forward(UP, *up), self._forward(DOWN, *down))

    async def _turn_away(self, near: StreamReader, to_near: StreamWriter) -> None:
        if self._turns_away == "hears, then closes":
            await near.read(64)
        if self._turns_away != "stays silent":
            self._break(to_near, reset=self._turns_away == "resets")
        with self._changed:
            self.num_turned_away += 1
            self._changed.notify_all()

    async def _forward(self, way: str, source: StreamReader, *ends: StreamWriter) -> None:
        """Move the bytes of one direction of a connection until an end closes."""
        is_reset = False
        try:
            while piece := await source.read(_MOST_READ):
                await asyncio.sleep(self._delay_s)
                await self._write(way, piece, ends[1])
        except OSError:
            is_reset = True
        await self._pass(way)
        for one in ends:
            if is_reset:
                self._break(one, reset=True)
            one.close()

    async def _write(self, way: str, piece: bytes, sink: StreamWriter) -> None:
        """Write bytes in pieces of the present size, at the present rate."""
        ready_at = monotonic()
        while piece:
            await self._pass(way)
            await asyncio.sleep(ready_at - monotonic())
            if sink.is_closing():
                return
            with self._changed:  # both connections of a link count together
                at, reset = self._cuts.get(way, (2**62, False))
                most = min(self._piece, int(min(_PIECE, self._bytes_per_s * _BURST_S + 1)))
                now, piece = piece[: min(most, at - self.num_bytes[way])], piece[most:]
                sink.write(now)
                self.num_bytes[way] += len(now)
                if self.num_bytes[way] == at:
                    self._break_all(reset)
                self._changed.notify_all()
            await sink.drain()
            ready_at = max(ready_at, monotonic() - _LATE_S) + len(now) / self._bytes_per_s

    async def _pass(self, way: str) -> None:
        while way in self._closed:
            self._has_healed.clear()
            await self._has_healed.wait()

    def _break_all(self, reset: bool) -> None:
        for one in [*self._writers]:
            self._break(one, reset)
        with self._changed:
            self._cuts.clear()
            self._changed.notify_all()

    def _break(self, one: StreamWriter, reset: bool) -> None:
        self._writers.discard(one)
        if reset:
            with suppress(OSError):  # it is closed
                connection = one.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        one.transport.abort()
