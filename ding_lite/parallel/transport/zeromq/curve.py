"""CURVE on ZeroMQ sockets: encryption and authentication.

ZeroMQ calls a handler within the process (ZAP) for each connection that has proved to hold a key.
The answer contains the node id of the key, and ZeroMQ attaches it to every message of that
connection. So a peer cannot send as another node, whatever its messages claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import zmq
from zmq.utils import z85

from ding_lite.parallel.network.security import Key

_ZAP = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_DOMAIN = b"ding_lite"
_USER_ID = "User-Id"
_REQUEST_FRAMES = 7


class CurveAuthenticator:
    """Gives a node's sockets their keys, and authenticates the connections of its peers."""

    def __init__(
        self, context: zmq.Context[Any], key: Key, node_id: int, peers: Iterable[int]
    ) -> None:
        self._key = key
        self._node_id = node_id
        self._peers: dict[bytes, int] = {}
        for peer in peers:
            self.admit(peer)
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP)

    def admit(self, peer: int) -> None:
        self._peers[_public(self._key.of_dialler(peer))] = peer

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._key.of_listener(self._node_id))
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an answer a connection is refused

    def identify(self, socket: zmq.Socket[bytes], peer: int) -> None:
        own = self._key.of_dialler(self._node_id)
        socket.setsockopt(zmq.CURVE_SECRETKEY, own)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, _public(own))
        socket.setsockopt(zmq.CURVE_SERVERKEY, _public(self._key.of_listener(peer)))

    def answer(self) -> str | None:
        """Answer a waiting request; return why the connection was refused, or None."""
        request = self.socket.recv_multipart(zmq.NOBLOCK)
        number = request[1] if len(request) > 1 else b""
        peer = None
        if len(request) == _REQUEST_FRAMES and request[5] == b"CURVE":
            peer = self._peers.get(request[6])
        verdict = [b"400", b"no key of a peer", b""]
        if peer is not None:
            verdict = [b"200", b"", str(peer).encode()]
        self.socket.send_multipart([_ZAP_VERSION, number, *verdict, b""])
        if peer is not None:
            return None
        place = request[3].decode(errors="replace") if len(request) > 3 else "somewhere"
        return f"A connection from {place} has no key of a peer of node {self._node_id}."


def owner_of(frame: zmq.Frame) -> int:
    return int(str(frame.get(_USER_ID)))


def _public(secret: bytes) -> bytes:
    return z85.decode(zmq.curve_public(z85.encode(secret)))
