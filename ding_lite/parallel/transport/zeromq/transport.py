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
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, cast

import zmq

from ding_lite.errors import TransportError
from ding_lite.log import Throttle
from ding_lite.parallel.network.address import Address, is_ipv6, is_taken
from ding_lite.parallel.network.security import check_dialling, load_key, place_to_listen, user_key
from ding_lite.parallel.transport.base import Frame, Lane, Link, Sink, Transport
from ding_lite.parallel.transport.chunks import CHUNK_ABOVE, split
from ding_lite.parallel.transport.zeromq.connections import Connections
from ding_lite.parallel.transport.zeromq.curve import CurveAuthenticator
from ding_lite.parallel.transport.zeromq.dealers import OPTIONS, WATCHED, Dealers
from ding_lite.parallel.transport.zeromq.reactor import Reactor
from ding_lite.parallel.transport.zeromq.reader import (
    Reader,
    proved_owner,
    raise_or_log,
    routing_id,
)
from ding_lite.parallel.transport.zeromq.sockets import Socket
from ding_lite.parallel.transport.zeromq.unauthenticated import (
    UnauthenticatedConnections,
    check_descriptors,
    make_room_for_descriptors,
)

logger = logging.getLogger(__name__)

_BACKLOG = 512
_NOT_THERE = (zmq.EAGAIN, zmq.EHOSTUNREACH, zmq.ENOTSOCK)
_WHY_NOT = {
    errno.EADDRINUSE: "Is another job using it? So does a node that was started twice.",
    errno.EADDRNOTAVAIL: "No interface of this machine has it: is it that of another one?",
    errno.EACCES: "Ports below 1024 are kept for the system: choose another one.",
}


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
        other_ids: Further nodes that may connect, for a second router, which `others` serves.
    """

    def __init__(
        self,
        node_id: int,
        *,
        peers: Iterable[int] = (),
        key_file: str | None = None,
        other_ids: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()
        self._node_id = node_id
        self._peers = frozenset(peers) | other_ids
        self._sinks: list[Sink] = []
        self.others = cast(Transport, _Others(self, self._sinks))
        """The second router's view of this transport, which the first one opens and closes."""
        self._key_file = key_file
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router: zmq.Socket[bytes] | None = None
        self._dealers: dict[Link, Dealers] = {}
        self._connections = Connections(num_peers=len(self._peers))
        throttle = Throttle(logger)
        self._reader = Reader(
            self._sockets,
            self._connections,
            self._sinks,
            other_ids=other_ids,
            max_under_way=2 * max(1, len(self._peers)),
            throttle=throttle,
        )
        self._throttle = throttle
        self._large_messages = count(1)
        self._wants_tick = False
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
            self._reader.is_guarded = True
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
        self._reader.unauthenticated = UnauthenticatedConnections(port, len(self._peers))
        return str(replace(wanted, port=port))

    def dial(self, node_id: int, address: str) -> None:
        place = Address.parse(address)
        check_dialling(place, key_file=self._key_file)
        dealers = Dealers(node_id, address)
        self._dealers[dealers.link] = dealers
        for lane in Lane:
            socket = self._socket(zmq.DEALER, dealers, lane, place)
            check_descriptors()
            if place.scheme == "tcp":
                self._keys().identify(socket, node_id)
            dealers.connect(lane, socket)

    def start(self, sink: Sink) -> None:
        self._sinks.insert(0, sink)
        self._begin()

    def _keys(self) -> CurveAuthenticator:
        if self._reader.authenticator is None:
            key = user_key() if self._key_file is None else load_key(self._key_file)
            authenticator = CurveAuthenticator(self._context, key, self._node_id, self._peers)
            self._sockets.add(authenticator.socket)
            self._reader.authenticator = authenticator
        return self._reader.authenticator

    def _socket(
        self, kind: int, dealers: Dealers | None, lane: Lane, place: Address
    ) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        for option, value in OPTIONS.items():
            socket.setsockopt(option, value)
        if place.scheme == "tcp" and is_ipv6(place.place):
            socket.setsockopt(zmq.IPV6, 1)
        try:
            monitor = socket.get_monitor_socket(WATCHED)
        except zmq.ZMQError:  # this process can open no more files
            socket.close(linger=0)  # an open socket would hold up the end of the context
            raise
        self._reader.add(socket, monitor, dealers, lane)
        return socket

    # -- from any thread -----------------------------------------------------------------

    def admit(self, node_id: int) -> None:
        if node_id not in self._peers:
            self._peers |= {node_id}
            self._reader.assembler.make_room(2)
            self._connections.num_peers += 1
        if self._reader.authenticator is not None:
            self._reader.authenticator.admit(node_id)

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
            for socket in self._reader.sources:
                socket.disable_monitor()
                socket.close()
            for monitor in self._reader.monitors:
                monitor.close(linger=0)
            if self._reader.authenticator is not None:
                self._reader.authenticator.socket.close()
        for dealers in self._dealers.values():
            dealers.close()
        if self._reader.unauthenticated is not None:
            self._reader.unauthenticated.close()
        self._sockets.close()
        self._context.term()

    # -- within an iteration -------------------------------------------------------------

    def owner(self, link: Link) -> int | None:
        dealers = self._dealers.get(link)
        if dealers is not None:
            return dealers.node_id
        return proved_owner(link) if self._reader.is_guarded else None

    def received_at(self, link: Link) -> float:
        return max(self._connections.received_at(self._route(link, lane)) for lane in Lane)

    def forget(self, link: Link) -> None:
        self._reader.assembler.forget(link)

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
                del self._reader.sources[socket]
                self._sockets.remove(socket)
                socket.disable_monitor()
                socket.close(linger=0)
            monitors = self._reader.monitors
            for monitor in [each for each, of in monitors.items() if of and of[0] is dealers]:
                del monitors[monitor]
                self._sockets.remove(monitor)
                monitor.close(linger=0)

    def _tick(self) -> float:
        wait_s = math.inf
        for sink in self._sinks:
            wait_s = min(wait_s, sink.on_tick())
        return wait_s

    def _route(self, link: Link, lane: Lane) -> bytes:
        is_incoming = self._reader.is_guarded and link not in self._dealers
        return (routing_id(link) if is_incoming else link) + lane

    def _serve(self, found: Sequence[Socket]) -> float:
        try:
            self._reader.read(found)
            self._wants_tick = False
            wait_s = min(self._tick(), self._reader.check())
        except BaseException as error:  # noqa: BLE001 - all peers are served here, so it goes on
            raise_or_log(self._throttle, error)
            return 0.0
        return 0.0 if self._wants_tick else wait_s  # a thread has requested a tick meanwhile
