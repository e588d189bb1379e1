"""A peer that this node dials, and how every socket of a node is set up.

A dialled peer is two DEALER sockets, one a lane. It is there when both are. Their monitors also
tell why a handshake has failed, which decides between an accident and a refusal: a peer that is
starting or dying is dialled again, one that has no place for this node is not.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field

import zmq

from ding_lite.parallel.transport.base import Lane, Link
from ding_lite.parallel.transport.chunks import MAX_FRAME_BYTES

DOWN = zmq.Event.DISCONNECTED
UP = zmq.Event.HANDSHAKE_SUCCEEDED
NO_KEY = zmq.Event.HANDSHAKE_FAILED_PROTOCOL
UNKNOWN_KEY = zmq.Event.HANDSHAKE_FAILED_AUTH
HUNG_UP = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
OPENED = zmq.Event.ACCEPTED | zmq.Event.CONNECTED
WATCHED = OPENED | DOWN | UP | NO_KEY | UNKNOWN_KEY | HUNG_UP
"""What a node wants to hear of its connections."""

OPTIONS = {
    zmq.SNDHWM: 0,
    zmq.RCVHWM: 0,
    zmq.LINGER: 1_000,  # milliseconds, as all below
    zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
    zmq.HANDSHAKE_IVL: 5_000,
    # Of a machine that is cut off the kernel tells: what was sent must be acknowledged in time, and
    # where nothing is sent, it asks. ZeroMQ's own heartbeats abort the process now and then.
    zmq.TCP_MAXRT: 3_000,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 1,  # seconds, as the next one
    zmq.TCP_KEEPALIVE_INTVL: 1,
    zmq.TCP_KEEPALIVE_CNT: 3,
}
"""How every socket is set up."""

_HANG_UPS = 3
"""Times in a row that a peer must hang up on the handshake to count as a refusal."""
_CLOSED_BY_PEER = (errno.EPIPE, errno.ECONNRESET)
"""What a handshake ends with when the peer hangs up, rather than when it is slow."""
_REASONS = {
    NO_KEY: "what listens at {} has no key, or is no node.",
    UNKNOWN_KEY: "it does not count this node among its neighbours.",
    HUNG_UP: "it has another key, or what listens at {} is another node or none.",
}


@dataclass
class Dealers:
    """The two sockets that dial one peer."""

    node_id: int
    address: str
    link: Link = field(default_factory=lambda: Link(b"d" + os.urandom(12)))
    sockets: dict[Lane, zmq.Socket[bytes]] = field(default_factory=dict)
    _up: set[Lane] = field(default_factory=set)
    _was_there: bool = False
    _is_refused: bool = False
    _num_hang_ups: int = 0

    def connect(self, lane: Lane, socket: zmq.Socket[bytes]) -> None:
        """Dial with one of the sockets."""
        socket.setsockopt(zmq.ROUTING_ID, self.link + lane.value)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing queues up for a peer that is not there
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
        socket.connect(self.address)
        self.sockets[lane] = socket

    @property
    def is_there(self) -> bool:
        """Whether both sockets are connected."""
        return len(self._up) == len(Lane)

    def note_up(self, lane: Lane) -> bool:
        """Note that a socket is connected; return whether that makes the peer be there."""
        self._num_hang_ups = 0
        if lane in self._up:
            return False
        self._up.add(lane)
        self._was_there = self._was_there or self.is_there
        return self.is_there

    def note_down(self, lane: Lane) -> bool:
        """Note that a socket is not connected; return whether the peer was there until now."""
        was_there = self.is_there
        self._up.discard(lane)
        return was_there and lane not in self._up

    def note_failure(self, event: zmq.Event, value: int) -> str | None:
        """Note that a handshake has failed; return why, if it is a refusal.

        Who was let in once is not refused later: the peer may be starting again.
        """
        if event == HUNG_UP:
            self._num_hang_ups += value in _CLOSED_BY_PEER
            if self._num_hang_ups < _HANG_UPS:
                return None
        if self._was_there or self._is_refused:
            return None
        self._is_refused = True
        for socket in self.sockets.values():
            with suppress(zmq.ZMQError):  # this connection is over already
                socket.disconnect(self.address)
        return _REASONS[event].format(self.address)
