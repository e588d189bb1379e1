"""Read what the sockets bring: messages, and the events of their connections.

Messages are delivered to the routers, which are also told of peers that come and go. Connections
that do harm are cut.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import CodecError
from ding_lite.interruption import is_for_program
from ding_lite.log import Throttle
from ding_lite.parallel.transport.base import Frame, Lane, Link, Sink, log_failure
from ding_lite.parallel.transport.chunks import HEAD_BYTES, MAX_FRAMES, Assembler, is_chunk
from ding_lite.parallel.transport.zeromq.connections import Connections, Source
from ding_lite.parallel.transport.zeromq.curve import CurveAuthenticator, owner_of
from ding_lite.parallel.transport.zeromq.dealers import DOWN, HUNG_UP, NO_KEY, OPENED, UP, Dealers
from ding_lite.parallel.transport.zeromq.sockets import Socket, Sockets
from ding_lite.parallel.transport.zeromq.unauthenticated import UnauthenticatedConnections

_READ_AT_ONCE = 256
_EVENTS_AT_ONCE = 64
_EVENTS_FOR_S = 0.02
"""Seconds for which connection events may delay messages."""
_SUSPICION_EVERY_S = 0.02
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
    """Reads the sockets of a transport.

    Args:
        sockets: The sockets of the transport.
        connections: Counts what each connection brings.
        sinks: The router, and the second one, if there is one; the first is told of connections.
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
        self.monitors: dict[Socket, tuple[Dealers, Lane] | None] = {}
        """The monitors of the sockets; None for the listening socket."""
        self.authenticator: CurveAuthenticator | None = None
        self.unauthenticated: UnauthenticatedConnections | None = None
        self.is_guarded = False
        """Whether connections to the listening socket prove to be of a node."""
        self._num_suspicions = 0
        self._suspicions_at = 0.0

    def add(self, socket: Socket, monitor: Socket, dealers: Dealers | None, lane: Lane) -> None:
        """Read a socket; it listens if it is none of `dealers`."""
        self.sources[socket] = None if dealers is None else dealers.source(lane)
        self.monitors[monitor] = None if dealers is None else (dealers, lane)
        self._sockets.add(socket)
        self._sockets.add(monitor)

    def read(self, found: Sequence[Socket]) -> None:
        """Read these sockets: messages before the events of their connections."""
        is_drained, others = True, []
        for socket in found:
            if socket in self.sources:
                is_drained = self._read_messages(socket) and is_drained
            else:
                others.append(socket)
        for socket in others:
            if socket in self.monitors:
                self._read_events(socket)
            elif self.authenticator is not None and socket is self.authenticator.socket:
                self._answer(self.authenticator)
        if is_drained and self._connections.num_tcp:
            self._connections.drained()

    # -- messages ------------------------------------------------------------------------

    def _read_messages(self, socket: Socket) -> bool:
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

    # -- events of connections -----------------------------------------------------------

    def check(self) -> float:
        wait_s = self._check_suspicions() if self._num_suspicions else math.inf
        if self._connections.num_tcp or self.unauthenticated is not None:
            wait_s = min(wait_s, self._check_connections())
        return wait_s

    def _answer(self, authenticator: CurveAuthenticator) -> None:
        for _ in range(_EVENTS_AT_ONCE):
            answer = self._sockets.take(authenticator.socket, lambda: [authenticator.answer()])
            if answer is None:
                return
            [refusal] = answer
            if refusal is not None:
                self._sinks[0].on_rejected(refusal)

    def _read_events(self, monitor: Any) -> None:
        dialled = self.monitors[monitor]
        if dialled is None:  # before reading of the events, which is slow
            self._check_unauthenticated(has_come=True)
        until = SYSTEM_CLOCK.now() + _EVENTS_FOR_S
        for _ in range(_EVENTS_AT_ONCE):
            if SYSTEM_CLOCK.now() > until:
                return
            happened = self._sockets.take(monitor, lambda: recv_monitor_message(monitor, _NOW))
            if happened is None:
                return
            event, value = happened["event"], happened["value"]
            if dialled is None:
                self._note_incoming_event(event, value)
            else:
                self._note_dialled_event(*dialled, event, value)

    def _note_incoming_event(self, event: zmq.Event, fd: int) -> None:
        if event in OPENED:
            if self.unauthenticated is None:
                self._connections.opened(fd)
            self._check_unauthenticated(has_come=True)
        elif event == DOWN:
            self._connections.closed(fd)
            self._num_suspicions = 2  # ZeroMQ reports it before its own sockets know
        elif event in (NO_KEY, HUNG_UP):  # a connection with an unknown key was counted already
            self._sinks[0].on_rejected("A connection was not of a node, or had a wrong key.")

    def _note_dialled_event(
        self, dealers: Dealers, lane: Lane, event: zmq.Event, value: int
    ) -> None:
        if event in OPENED:
            self._connections.opened(value, dealers.source(lane))
            dealers.note_opened(lane, value)
        elif event == UP:
            if dealers.note_up(lane):
                self._sinks[0].on_up(dealers.link, dealers.node_id)
        elif event == DOWN:
            self._connections.closed(value)
            if dealers.note_down(lane):
                self._sinks[0].on_down(dealers.link)
        else:
            with self._sockets.using(*dealers.sockets.values()):
                reason = dealers.note_failure(lane, event, value)
            if dealers.doubt:
                self._throttle.every(
                    30.0,
                    logging.WARNING,
                    f"{dealers.node_id} {dealers.doubt}",
                    "node %d is not there yet: %s; this node goes on to dial",
                    dealers.node_id,
                    dealers.doubt,
                )
            if reason is not None:
                self._sinks[0].on_refused(dealers.node_id, reason)

    def _check_connections(self) -> float:
        wait_s, reasons = self._connections.check(SYSTEM_CLOCK.now())
        for reason in reasons:
            self._sinks[0].on_rejected(reason)
        return min(wait_s, self._check_unauthenticated())

    def _check_unauthenticated(self, *, has_come: bool = False) -> float:
        """Cut connections that linger in the handshake or bring too much; return the wait."""
        if self.unauthenticated is None:
            return math.inf
        wait_s, proved, reasons = self.unauthenticated.check(has_come=has_come)
        for fd in proved:
            self._connections.opened(fd)
        if proved:
            reasons += self._connections.cut_surplus()
        for reason in reasons:
            self._sinks[0].on_rejected(reason)
        return wait_s

    def _check_suspicions(self) -> float:
        """Let the sink find broken links, at a limited rate; return when to call this again."""
        now = SYSTEM_CLOCK.now()
        if now < self._suspicions_at:
            return self._suspicions_at - now
        self._num_suspicions -= 1
        self._suspicions_at = now + _SUSPICION_EVERY_S
        for sink in self._sinks:
            sink.on_suspicion()
        return 0.0


def raise_or_log(throttle: Throttle, error: BaseException) -> None:
    """Raise errors that are for the program; log others, as the thread serves all peers."""
    if is_for_program(error):
        raise error
    log_failure(throttle, error)
