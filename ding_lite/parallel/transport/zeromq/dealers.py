"""The sockets that dial a peer, and the options of every socket.

A dialled peer has two DEALER sockets, one per lane, and is connected when both are. Their monitors
also report why a handshake has failed, which distinguishes an accident from a refusal: a peer that
is starting or dying is dialled again, a peer that has no place for this node is not.

A port forward or load balancer without a node behind it accepts a connection and hangs up, as a
node does for a wrong key. But a node greets first, so the kernel's count of received bytes tells
them apart. It is read through a copy of the descriptor, as ZeroMQ closes it before it reports.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field

import zmq

from ding_lite.errors import TransportError
from ding_lite.parallel.network.address import Address
from ding_lite.parallel.transport.base import Lane, Link
from ding_lite.parallel.transport.chunks import MAX_FRAME_BYTES
from ding_lite.parallel.transport.zeromq.connections import Source, borrow, bytes_received

DOWN = zmq.Event.DISCONNECTED
UP = zmq.Event.HANDSHAKE_SUCCEEDED
NO_KEY = zmq.Event.HANDSHAKE_FAILED_PROTOCOL
UNKNOWN_KEY = zmq.Event.HANDSHAKE_FAILED_AUTH
HUNG_UP = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
OPENED = zmq.Event.ACCEPTED | zmq.Event.CONNECTED
WATCHED = OPENED | DOWN | UP | NO_KEY | UNKNOWN_KEY | HUNG_UP

OPTIONS = {
    zmq.SNDHWM: 0,
    zmq.RCVHWM: 0,
    zmq.LINGER: 1_000,  # milliseconds, as all below
    zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
    zmq.HANDSHAKE_IVL: 5_000,
    # The kernel detects a machine that is cut off: sent data must be acknowledged in time, and
    # keepalives are sent if there is no data. ZeroMQ's own heartbeats may abort the process.
    zmq.TCP_MAXRT: 3_000,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 1,  # seconds, as the next one
    zmq.TCP_KEEPALIVE_INTVL: 1,
    zmq.TCP_KEEPALIVE_CNT: 3,
}

_SIGNATURE_BYTES = 10  # with which ZeroMQ begins every connection
_HANG_UPS = 3  # in a row that count as a refusal
_SLOWLY_MS = 500
_CLOSED_BY_PEER = (errno.EPIPE, errno.ECONNRESET)
_REASONS = {
    NO_KEY: "what listens at {} has no key, or is no node.",
    UNKNOWN_KEY: "it does not count this node among its peers.",
    HUNG_UP: "it has another key, or what listens at {} is another node or none.",
}
_SILENCE = (
    "what listens at {} closes each connection without a greeting, as a port forward does that has "
    "no node behind it"
)
"""No node hangs up without a greeting."""


@dataclass
class Dealers:
    """The two sockets that dial one peer."""

    node_id: int
    address: str
    link: Link = field(default_factory=lambda: Link(b"d" + os.urandom(12)))
    sockets: dict[Lane, zmq.Socket[bytes]] = field(default_factory=dict)
    is_there: bool = False
    _up: set[Lane] = field(default_factory=set)
    _was_there: bool = False
    _is_refused: bool = False
    doubt: str = ""
    """Why the last handshake may have failed, if it is no refusal."""
    _num_hang_ups: int = 0
    _copies: dict[Lane, socket.socket] = field(default_factory=dict)

    def source(self, lane: Lane) -> Source:
        return Source(self.link, lane, self.link + lane, self.node_id)

    def connect(self, lane: Lane, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.ROUTING_ID, self.link + lane)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # no message queues up for a peer that is not there
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            raise TransportError(
                f"Node {self.node_id} cannot be dialled at {self.address}: "
                f"{os.strerror(error.errno or 0)}. Write it as tcp://127.0.0.1:50515."
            ) from error
        self.sockets[lane] = socket

    def note_opened(self, lane: Lane, fd: int) -> None:
        self._close_copy(lane)
        with suppress(OSError):  # it is closed already
            copy = borrow(fd)
            self._copies[lane] = copy
            if not self._is_peer(copy.getpeername()):  # the number of the descriptor was reused
                self._close_copy(lane)

    def _is_peer(self, name: str | tuple[str, int]) -> bool:
        return isinstance(name, tuple) and name[1] == Address.parse(self.address).port

    def _close_copy(self, lane: Lane) -> None:
        if (copy := self._copies.pop(lane, None)) is not None:
            copy.close()

    def close(self) -> None:
        """Close the copies of descriptors; the sockets themselves stay open."""
        for lane in Lane:
            self._close_copy(lane)

    def note_up(self, lane: Lane) -> bool:
        """Return whether both sockets are connected now, as they were not before."""
        self._close_copy(lane)
        self._num_hang_ups = 0
        if lane in self._up:
            return False
        self._up.add(lane)
        self.is_there = len(self._up) == len(Lane)
        self._was_there = self._was_there or self.is_there
        return self.is_there

    def note_down(self, lane: Lane) -> bool:
        self._close_copy(lane)
        was_there, self.is_there = self.is_there, False
        self._up.discard(lane)
        return was_there

    def note_failure(self, lane: Lane, event: zmq.Event, value: int) -> str | None:
        """Return why a handshake has failed, if it is a refusal.

        After a first success no failure is a refusal: the peer may be starting again.
        """
        has_greeted = self._has_greeted(lane)
        is_silent = value in _CLOSED_BY_PEER and not has_greeted
        self.doubt = _SILENCE.format(self.address) if is_silent else ""
        self._close_copy(lane)
        if event == HUNG_UP:
            self._num_hang_ups += value in _CLOSED_BY_PEER and has_greeted
            if self._num_hang_ups < _HANG_UPS:
                return None
        if self._was_there:
            self._dial_slowly(self.sockets[lane])
            self.doubt = self.doubt or _REASONS[event].format(self.address).rstrip(".")
            return None
        if self._is_refused:
            return None
        self._is_refused = True
        for dealer in self.sockets.values():
            with suppress(zmq.ZMQError):  # this connection is over already
                dealer.disconnect(self.address)
        return _REASONS[event].format(self.address)

    def _dial_slowly(self, dealer: zmq.Socket[bytes]) -> None:
        """Dial again after a pause: ZeroMQ itself pauses for long only if nothing listens."""
        if dealer.getsockopt(zmq.RECONNECT_IVL) != _SLOWLY_MS:
            dealer.setsockopt(zmq.RECONNECT_IVL, _SLOWLY_MS)
            with suppress(zmq.ZMQError):  # this connection is over already
                dealer.disconnect(self.address)
            dealer.connect(self.address)

    def _has_greeted(self, lane: Lane) -> bool:
        """Return whether the listener has sent a greeting; always true on a socket file."""
        if not self.address.startswith("tcp"):
            return True
        copy = self._copies.get(lane)
        return copy is not None and (bytes_received(copy) or 0) >= _SIGNATURE_BYTES
