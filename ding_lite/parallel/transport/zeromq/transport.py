"""A transport over ZeroMQ.

What is ugly here and why: a node listens on a ROUTER socket and dials each peer with two DEALER
sockets, one per lane. Their routing ids are a random token and the lane. One thread at a time reads
all sockets (`zeromq.reactor`), and any may send (`zeromq.sockets`). ZeroMQ hides broken
connections, so a monitor watches each socket. Without it a dead peer would only be noticed when its
heartbeats stop, and a refused peer would retry for ever. A ROUTER does not report which peer has
gone (`on_suspicion`); sending to it does (`ROUTER_MANDATORY`).

High-water marks are off on purpose: they would drop or block messages that the sessions above count
and bound, and ZeroMQ 4.3.5 with heartbeats aborts the process if peers that have reached the mark
disconnect. Instead, `zeromq.connections` bounds the bytes that a peer can make ZeroMQ hold
(`docs/design/0009-back-pressure.md`). Frames are bounded: connections that send larger ones are
cut, and large messages are sent in chunks. On tcp everything is encrypted, and a connection must
prove to be of a peer.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar, cast

import zmq
from zmq.utils.monitor import recv_monitor_message

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import CodecError, TransportError
from ding_lite.interruption import is_for_program
from ding_lite.log import Throttle
from ding_lite.parallel.network.address import Address, is_taken
from ding_lite.parallel.network.security import check_dialling, load_key, place_to_listen, user_key
from ding_lite.parallel.transport.base import Frame, Lane, Link, Sink, Transport, log_failure
from ding_lite.parallel.transport.chunks import (
    CHUNK_ABOVE,
    HEAD_BYTES,
    MAX_FRAMES,
    Assembler,
    is_chunk,
    split,
)
from ding_lite.parallel.transport.zeromq.connections import Connections
from ding_lite.parallel.transport.zeromq.curve import CurveAuthenticator, owner_of
from ding_lite.parallel.transport.zeromq.dealers import (
    DOWN,
    HUNG_UP,
    NO_KEY,
    OPENED,
    OPTIONS,
    UP,
    WATCHED,
    Dealers,
)
from ding_lite.parallel.transport.zeromq.reactor import Reactor
from ding_lite.parallel.transport.zeromq.sockets import Socket
from ding_lite.parallel.transport.zeromq.unauthenticated import (
    UnauthenticatedConnections,
    check_descriptors,
    make_room_for_descriptors,
)

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_BACKLOG = 512
_READ_AT_ONCE = 256
_BULK_COUNTS = 16
"""The number of small messages that a bulky one counts for."""
_EVENTS_AT_ONCE = 64
_EVENTS_FOR_S = 0.02
"""Seconds for which connection events may delay messages."""
_SUSPICION_EVERY_S = 0.02
_NOW = int(zmq.NOBLOCK)
_DESCRIPTOR = int(zmq.SRCFD)
_NOT_THERE = (zmq.EAGAIN, zmq.EHOSTUNREACH, zmq.ENOTSOCK)
_WHY_NOT = {
    errno.EADDRINUSE: "Is another job using it? So does a node that was started twice.",
    errno.EADDRNOTAVAIL: "No interface of this machine has it: is it that of another one?",
    errno.EACCES: "Ports below 1024 are kept for the system: choose another one.",
}
_LANES: dict[bytes, Lane] = {lane: lane for lane in Lane}
_OWNED = b"@"
"""Precedes, in a link's name, the node that is proved to own the link."""


class _Source(NamedTuple):
    """The origin of the messages of a dialled socket, or of one message of a listening one."""

    link: Link | None
    """None for a routing id that no node has."""
    lane: Lane
    route: bytes
    owner: int | None
    fd: int = -1


class _Others:
    """The transport of a second router, which starts before the first one and ends before it."""

    def __init__(self, transport: Transport, sinks: list[Sink]) -> None:
        self._transport = transport
        self._sinks = sinks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def listen(self, address: str) -> str:
        return address

    def start(self, sink: Sink) -> None:
        self._sinks.append(sink)

    def close(self) -> None:
        pass


class ZeroMQTransport(Reactor, Transport):
    """Moves messages over `ipc://` and `tcp://` addresses.

    Args:
        node_id: This node.
        peers: The nodes that may connect to it.
        key_file: The file of the job's key, for tcp; without one the user's own key, on loopback.
        connections: Bounds the bytes that ZeroMQ holds for this node, for tcp.
        other_ids: Further nodes that may connect, for a second router, which `others` serves.
    """

    def __init__(
        self,
        node_id: int,
        *,
        peers: Iterable[int] = (),
        key_file: str | None = None,
        connections: Connections | None = None,
        other_ids: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()
        self._node_id = node_id
        self._peers = frozenset(peers) | other_ids
        self._other_ids = other_ids
        self._sinks: list[Sink] = []
        self.others = cast(Transport, _Others(self, self._sinks))
        """The second router's view of this transport, which the first one opens and closes."""
        self._key_file = key_file
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator: CurveAuthenticator | None = None
        self._router: zmq.Socket[bytes] | None = None
        self._is_guarded = False
        self._dealers: dict[Link, Dealers] = {}
        self._messages: dict[Socket, _Source | None] = {}
        self._monitors: dict[Socket, tuple[Link | None, Lane]] = {}
        self._connections = Connections() if connections is None else connections
        self._connections.num_peers = len(self._peers)
        self._unauthenticated: UnauthenticatedConnections | None = None
        self._assembler = Assembler(max_under_way=2 * max(1, len(self._peers)))
        self._large_messages = count(1)
        self._throttle = Throttle(logger)
        self._wants_tick = False
        self._num_suspicions = 0
        self._suspicions_at = 0.0
        self._is_closing = False
        self._lock = threading.Lock()

    # -- before the start ----------------------------------------------------------------

    def listen(self, address: str) -> str:
        wanted = Address.parse(address)
        place = place_to_listen(wanted, key_file=self._key_file)
        socket = self._socket(zmq.ROUTER, None, Lane.CONTROL, place)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        if place.scheme == "ipc":
            socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
        else:
            self._keys().guard(socket)
            self._is_guarded = True
        try:
            if place.scheme == "ipc" and is_taken(place.place):
                raise zmq.ZMQError(errno.EADDRINUSE)  # ZeroMQ itself would take it over
            socket.bind(str(place))
        except zmq.ZMQError as error:
            number = error.errno or 0
            hint = _WHY_NOT.get(number, "Write it as tcp://127.0.0.1:50515.")
            raise TransportError(
                f"This node cannot listen on {address}: {os.strerror(number)}. {hint}"
            ) from error
        self._router = socket
        if place.scheme == "ipc":
            return address
        taken = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        port = Address.parse(taken).port
        make_room_for_descriptors()
        self._unauthenticated = UnauthenticatedConnections(port, len(self._peers))
        return str(replace(wanted, port=port))

    def dial(self, node_id: int, address: str) -> None:
        place = Address.parse(address)
        check_dialling(place, key_file=self._key_file)
        dealers = Dealers(node_id, address)
        self._dealers[dealers.link] = dealers
        for lane in Lane:
            socket = self._socket(zmq.DEALER, dealers.link, lane, place)
            check_descriptors()
            if place.scheme == "tcp":
                self._keys().identify(socket, node_id)
            dealers.connect(lane, socket)

    def start(self, sink: Sink) -> None:
        self._sinks.insert(0, sink)
        self._begin()

    def _keys(self) -> CurveAuthenticator:
        if self._authenticator is None:
            key = user_key() if self._key_file is None else load_key(self._key_file)
            self._authenticator = CurveAuthenticator(self._context, key, self._node_id, self._peers)
            self._sockets.add(self._authenticator.socket)
        return self._authenticator

    def _socket(
        self, kind: int, link: Link | None, lane: Lane, place: Address
    ) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        for option, value in OPTIONS.items():
            socket.setsockopt(option, value)
        if ":" in place.place and place.scheme == "tcp":
            socket.setsockopt(zmq.IPV6, 1)
        try:
            monitor = socket.get_monitor_socket(WATCHED)
        except zmq.ZMQError:  # this process can open no more files
            socket.close(linger=0)  # an open socket would hold up the end of the context
            raise
        self._monitors[monitor] = link, lane
        owner = None if link is None else self._dealers[link].node_id
        self._messages[socket] = None if link is None else _Source(link, lane, link + lane, owner)
        self._sockets.add(socket)
        self._sockets.add(monitor)
        return socket

    # -- from any thread -----------------------------------------------------------------

    def admit(self, node_id: int) -> None:
        if node_id not in self._peers:
            self._peers |= {node_id}
            self._assembler.make_room(2)
            self._connections.num_peers += 1
        if self._authenticator is not None:
            self._authenticator.admit(node_id)

    def send(self, link: Link, lane: Lane, frames: Sequence[Frame]) -> bool:
        dealers = self._dealers.get(link)
        route: list[Frame] = []
        messages: Iterable[Sequence[Frame]]
        if dealers is not None:
            if not dealers.is_there:  # one lane may be, or ZeroMQ may not have noticed yet
                return False
            socket = dealers.sockets[lane]
        elif self._router is not None:
            socket = self._router
            route = [self._route(link, lane)]
        else:
            return False
        is_single = len(frames) == 1 and type(frames[0]) is bytes
        nbytes = len(frames[0]) if is_single else sum([memoryview(part).nbytes for part in frames])
        if nbytes <= CHUNK_ABOVE:
            messages = [[*route, *frames]]
        else:
            number = next(self._large_messages)
            messages = ([*route, *chunk] for chunk in split(frames, number))
        try:
            self._sockets.send(socket, messages)
        except zmq.ZMQError as error:
            if error.errno in _NOT_THERE:
                return False
            raise
        return True

    def wake(self) -> None:
        is_known, self._wants_tick = self._wants_tick, True
        if not is_known and not self.is_calling:
            self._sockets.wake()

    def close(self) -> None:
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        self._stop()
        with self._sockets.lock:
            for socket in self._messages:
                socket.disable_monitor()
                socket.close()
            for monitor in self._monitors:
                monitor.close(linger=0)
            if self._authenticator is not None:
                self._authenticator.socket.close()
        for dealers in self._dealers.values():
            dealers.close()
        if self._unauthenticated is not None:
            self._unauthenticated.close()
        self._sockets.close()
        self._context.term()

    # -- within an iteration -------------------------------------------------------------

    def owner(self, link: Link) -> int | None:
        dealers = self._dealers.get(link)
        if dealers is not None:
            return dealers.node_id
        return int(link.rpartition(_OWNED)[2]) if self._is_guarded else None

    def received_at(self, link: Link) -> float:
        return max(self._connections.received_at(self._route(link, lane)) for lane in Lane)

    def forget(self, link: Link) -> None:
        self._assembler.forget(link)

    def drop(self, link: Link) -> None:
        self.forget(link)
        for lane in Lane:
            self._connections.cut(self._route(link, lane))

    def redial(self, node_id: int, address: str) -> None:
        check_dialling(Address.parse(address), key_file=self._key_file)
        for dealers in [each for each in self._dealers.values() if each.node_id == node_id]:
            self._hang_up(dealers)
        self.dial(node_id, address)

    def _hang_up(self, dealers: Dealers) -> None:
        self.drop(dealers.link)
        dealers.close()
        del self._dealers[dealers.link]
        with self._sockets.lock:
            for socket in dealers.sockets.values():
                del self._messages[socket]
                self._sockets.remove(socket)
                socket.disable_monitor()
                socket.close(linger=0)
            for monitor in [each for each, (at, _) in self._monitors.items() if at == dealers.link]:
                del self._monitors[monitor]
                self._sockets.remove(monitor)
                monitor.close(linger=0)

    def _tick(self) -> float:
        wait_s = math.inf
        for sink in self._sinks:
            wait_s = min(wait_s, sink.on_tick())
        return wait_s

    def _route(self, link: Link, lane: Lane) -> bytes:
        is_incoming = self._is_guarded and link not in self._dealers
        return (link.rpartition(_OWNED)[0] if is_incoming else link) + lane

    def _serve(self, found: Sequence[Socket]) -> float:
        """Run one iteration: deliver messages, and let the sink send."""
        try:
            is_drained, others = True, []
            for socket in found:
                if socket in self._messages:
                    is_drained = self._read(socket) and is_drained
                else:
                    others.append(socket)
            for socket in others:  # messages before the events of their connections
                if socket in self._monitors:
                    self._watch(socket)
                elif self._authenticator is not None and socket is self._authenticator.socket:
                    self._admit(self._authenticator)
            if is_drained and self._connections.num_tcp:
                self._connections.drained()
            self._wants_tick = False
            wait_s = self._tick()
            if self._num_suspicions:
                wait_s = min(wait_s, self._check_suspicions())
            if self._connections.num_tcp or self._unauthenticated is not None:
                wait_s = min(wait_s, self._check_connections())
        except BaseException as error:  # noqa: BLE001 - all peers are served here, so it goes on
            self._raise_or_log(error)
            return 0.0
        return 0.0 if self._wants_tick else wait_s  # a thread has requested a tick meanwhile

    def _read(self, socket: Socket) -> bool:
        """Deliver messages; return whether all were delivered.

        Each message is delivered after the next one was read: a thread that it wakes needs the
        interpreter, and this thread has nearly finished with it then.
        """
        read = partial(self._receive, socket)
        left = _READ_AT_ONCE
        message = self._take(socket, read, check=False)
        while message is not None:
            source, frames, num_frames = message
            nbytes = sum(map(len, frames))
            if self._connections.num_tcp or source.route not in self._connections.of_routes:
                self._connections.note_read(
                    source.route, num_frames, nbytes, fd=source.fd, owner=source.owner
                )
            left -= _BULK_COUNTS if source.lane is Lane.BULK else 1
            if left > 0:
                message = self._take(socket, read)
            self._hand_on(source, frames, num_frames)
            if left <= 0:  # it is the other sockets' turn
                return False
        return True

    def _take(self, socket: Socket, read: Callable[[], _T], *, check: bool = True) -> _T | None:
        """Call `read` if there is a message; return None if not, or if it raises zmq.Again.

        Until then `wait` returns at once, and the socket stays in `unread`. To `check` first is
        cheaper if there is often no message.
        """
        with self._sockets.lock:
            if not check or self._sockets.is_readable(socket):
                try:  # `suppress` would cost each message more
                    return read()
                except zmq.Again:
                    pass
            self._sockets.unread.discard(socket)
            return None

    def _receive(self, socket: Any) -> tuple[_Source, list[Frame], int]:
        """Return a message with its source, and the number of its frames, surplus ones included."""
        source = self._messages[socket]
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

    def _source_of(self, first: Any) -> _Source:
        route, fd = first.bytes, int(first.get(_DESCRIPTOR))
        lane = _LANES.get(route[-1:])
        if lane is None:
            return _Source(None, Lane.CONTROL, route, None, fd)
        if not self._is_guarded:
            return _Source(Link(route[:-1]), lane, route, None, fd)
        owner = owner_of(first)
        return _Source(Link(route[:-1] + _OWNED + b"%d" % owner), lane, route, owner, fd)

    def _hand_on(self, source: _Source, frames: list[Frame], num_frames: int) -> None:
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
                num_given_up = self._assembler.num_given_up
                whole = self._assembler.take(link, source.lane, frames, owner=source.owner)
                if self._assembler.num_given_up > num_given_up:
                    self._sinks[0].on_rejected("A large message did not come to its end.")
                if whole is None:
                    return
                frames = whole
            sink.on_message(link, frames)
        except CodecError as error:
            sink.on_rejected(str(error), link)
        except BaseException as error:  # noqa: BLE001 - the thread serves all peers
            self._raise_or_log(error)

    def _raise_or_log(self, error: BaseException) -> None:
        if is_for_program(error):
            raise error
        log_failure(self._throttle, error)

    def _admit(self, authenticator: CurveAuthenticator) -> None:
        for _ in range(_EVENTS_AT_ONCE):
            answer = self._take(authenticator.socket, lambda: [authenticator.answer()])
            if answer is None:
                return
            [refusal] = answer
            if refusal is not None:
                self._sinks[0].on_rejected(refusal)

    def _watch(self, monitor: Any) -> None:
        link, lane = self._monitors[monitor]
        if link is None:  # before reading of the events, which is slow
            self._check_unauthenticated(has_come=True)
        until = SYSTEM_CLOCK.now() + _EVENTS_FOR_S
        for _ in range(_EVENTS_AT_ONCE):
            if SYSTEM_CLOCK.now() > until:
                return
            happened = self._take(monitor, lambda: recv_monitor_message(monitor, _NOW))
            if happened is None:
                return
            event, value = happened["event"], happened["value"]
            if link is None:
                self._note_incoming_event(event, value)
            else:
                self._note_dialled_event(self._dealers[link], lane, event, value)

    def _note_incoming_event(self, event: zmq.Event, fd: int) -> None:
        if event in OPENED:
            if self._unauthenticated is None:
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
            self._connections.opened(value, dealers.link + lane, dealers.node_id)
            dealers.note_opened(lane, value)
        elif event == UP:
            if dealers.note_up(lane):
                self._sinks[0].on_up(dealers.link, dealers.node_id)
        elif event == DOWN:
            self._connections.closed(value)
            if dealers.note_down(lane):
                self._assembler.forget(dealers.link)
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
        """Cut connections that make ZeroMQ hold too much; return the seconds to the next check."""
        wait_s, reasons = self._connections.check(SYSTEM_CLOCK.now())
        for reason in reasons:
            self._sinks[0].on_rejected(reason)
        return min(wait_s, self._check_unauthenticated())

    def _check_unauthenticated(self, *, has_come: bool = False) -> float:
        """Cut connections that linger in the handshake or bring too much; return the wait."""
        if self._unauthenticated is None:
            return math.inf
        wait_s, proved, reasons = self._unauthenticated.check(has_come=has_come)
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
