"""Read messages, and deliver them to the routers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import zmq

from ding_lite.errors import CodecError
from ding_lite.interruption import is_for_program
from ding_lite.log import Throttle
from ding_lite.parallel.transport.base import Frame, Lane, Link, Sink, log_failure
from ding_lite.parallel.transport.chunks import HEAD_BYTES, MAX_FRAMES, Assembler, is_chunk
from ding_lite.parallel.transport.zeromq.connections import Connections, Source
from ding_lite.parallel.transport.zeromq.curve import owner_of
from ding_lite.parallel.transport.zeromq.sockets import Socket, Sockets

_READ_AT_ONCE = 256
_BULK_COUNTS = 16
"""The number of small messages that a bulky one counts for."""
_NOW = int(zmq.NOBLOCK)
_DESCRIPTOR = int(zmq.SRCFD)
_LANES: dict[bytes, Lane] = {lane: lane for lane in Lane}
_OWNED = b"@"
"""Precedes, in a link's name, the node that is proved to own the link."""


def proved_owner(link: Link) -> int:
    """Return the node that is proved to own a link to a guarded socket."""
    return int(link.rpartition(_OWNED)[2])


def routing_id(link: Link) -> bytes:
    """Return the part of the routing ids of a link to a guarded socket that both lanes share."""
    return link.rpartition(_OWNED)[0]


class Reader:
    """Reads the sockets of messages.

    Args:
        sockets: The sockets of the transport.
        connections: Counts what each connection brings.
        sinks: The router, and the second one, if there is one.
        other_ids: The nodes that send to the second router.
    """

    def __init__(
        self,
        sockets: Sockets,
        connections: Connections,
        sinks: Sequence[Sink],
        *,
        other_ids: frozenset[int],
        max_under_way: int,
        throttle: Throttle,
    ) -> None:
        self._sockets = sockets
        self._connections = connections
        self._sinks = sinks
        self._other_ids = other_ids
        self._throttle = throttle
        self.assembler = Assembler(max_under_way=max_under_way)
        self.sources: dict[Socket, Source | None] = {}
        """The sockets, and the sources of their messages; None for the listening socket."""
        self.is_guarded = False
        """Whether connections to the listening socket prove to be of a node."""

    def add(self, socket: Socket) -> None:
        """Read a listening socket."""
        self.sources[socket] = None

    def add_dialled(self, socket: Socket, link: Link, lane: Lane, owner: int) -> None:
        self.sources[socket] = Source(link, lane, link + lane, owner)

    def read(self, socket: Socket) -> bool:
        """Deliver messages; return whether all were delivered.

        Each message is delivered after the next one was read: a thread that it wakes needs the
        interpreter, and this thread has nearly finished with it then.
        """
        read = partial(self._receive, socket)
        left = _READ_AT_ONCE
        message = self._sockets.take(socket, read, check=False)
        while message is not None:
            source, frames, num_frames = message
            nbytes = sum(map(len, frames))
            if self._connections.num_tcp or source.route not in self._connections.of_routes:
                self._connections.note_read(source, num_frames, nbytes)
            left -= _BULK_COUNTS if source.lane is Lane.BULK else 1
            if left > 0:
                message = self._sockets.take(socket, read)
            self._hand_on(source, frames, num_frames)
            if left <= 0:  # it is the other sockets' turn
                return False
        return True

    def _receive(self, socket: Any) -> tuple[Source, list[Frame], int]:
        """Return a message with its source, and the number of its frames, surplus ones included."""
        source = self.sources[socket]
        if source is None:
            source = self._source_of(socket.recv(_NOW, copy=False))
        part = socket.recv(_NOW, copy=False)
        num_frames, is_bulky = 1, source.lane is Lane.BULK
        # Small messages are copied, so that they do not keep a buffer of ZeroMQ's.
        frames: list[Frame] = [part.buffer if is_bulky else part.bytes]
        while part.more:
            part = socket.recv(_NOW, copy=False)
            num_frames += 1
            if num_frames <= MAX_FRAMES:
                frames.append(part.buffer if is_bulky else part.bytes)
        return source, frames, num_frames

    def _source_of(self, first: Any) -> Source:
        route, fd = first.bytes, int(first.get(_DESCRIPTOR))
        lane = _LANES.get(route[-1:])
        if lane is None:
            return Source(None, Lane.CONTROL, route, None, fd)
        if not self.is_guarded:
            return Source(Link(route[:-1]), lane, route, None, fd)
        owner = owner_of(first)
        return Source(Link(route[:-1] + _OWNED + b"%d" % owner), lane, route, owner, fd)

    def _hand_on(self, source: Source, frames: list[Frame], num_frames: int) -> None:
        link = source.link
        is_other = source.owner is not None and source.owner in self._other_ids
        sink = self._sinks[-1 if is_other else 0]
        try:
            if link is None:
                self._connections.cut(source.route)
                raise CodecError("A message is of neither lane.")
            if num_frames > MAX_FRAMES:
                raise CodecError(f"A message has {num_frames} frames; the limit is {MAX_FRAMES}.")
            if len(frames[0]) == HEAD_BYTES and is_chunk(frames):
                num_given_up = self.assembler.num_given_up
                whole = self.assembler.take(link, source.lane, frames, owner=source.owner)
                if self.assembler.num_given_up > num_given_up:
                    self._sinks[0].on_rejected("A large message did not come to its end.")
                if whole is None:
                    return
                frames = whole
            sink.on_message(link, frames)
        except CodecError as error:
            sink.on_rejected(str(error), link)
        except BaseException as error:  # noqa: BLE001 - the thread serves all peers
            raise_or_log(self._throttle, error)


def raise_or_log(throttle: Throttle, error: BaseException) -> None:
    """Raise errors that are for the program; log others, as the thread serves all peers."""
    if is_for_program(error):
        raise error
    log_failure(throttle, error)
