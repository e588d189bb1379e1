"""Limits on the bytes that ZeroMQ holds, and the cut of one connection of many."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from ding_lite.parallel.transport.base import Lane, Link
from ding_lite.parallel.transport.zeromq import connections as zeromq_connections
from ding_lite.parallel.transport.zeromq.connections import Connections, Source
from ding_lite.parallel.transport.zeromq.dealers import DOWN, OPENED
from tests.parallel.tcp import wait_until

MEGABYTE = 2**20
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
METADATA = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
READY = b"\x04" + bytes([len(METADATA)]) + METADATA
PART = b"\x03" + struct.pack(">Q", MEGABYTE) + bytes(MEGABYTE)
"""A frame with more to come."""


def source_of(route: bytes, owner: int | None = None, fd: int = -1) -> Source:
    return Source(Link(route), Lane.CONTROL, route, owner, fd)


class Listener:
    """A listening socket without security, and what is known of its connections."""

    def __init__(self, address: str, connections: Connections, stack: ExitStack) -> None:
        self.connections = connections
        self.context = stack.enter_context(zmq.Context())
        self.socket: Any = stack.enter_context(self.context.socket(zmq.ROUTER))
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.monitor = stack.enter_context(self.socket.get_monitor_socket(OPENED | DOWN))
        stack.callback(self.socket.disable_monitor)
        self.socket.bind(address)
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.now = 0.0
        self.opened: list[int] = []
        self.closed: list[int] = []

    def watch(self) -> None:
        while self.monitor.poll(0):
            happened = recv_monitor_message(self.monitor)
            if happened["event"] == DOWN:
                self.connections.closed(happened["value"])
                self.closed.append(happened["value"])
            else:
                self.connections.opened(happened["value"])
                self.opened.append(happened["value"])

    def wait_for(self, ready: Callable[[], bool]) -> None:
        wait_until(lambda: self.watch() or ready())

    def read(self, owner: int | None = 7) -> bytes:
        """Read one message; return the name of its connection."""
        first = self.socket.recv(copy=False)
        rest = self.socket.recv_multipart()
        nbytes = sum(map(len, rest))
        fd = int(first.get(zmq.SRCFD))
        self.connections.note_read(source_of(first.bytes, owner, fd), len(rest), nbytes)
        return bytes(first.bytes)

    def check(self) -> list[str]:
        """Let a second pass, and look."""
        self.now += 1.0
        _, reasons = self.connections.check(self.now)
        return reasons

    def peer(self, stack: ExitStack, route: bytes) -> Any:
        peer = stack.enter_context(self.context.socket(zmq.DEALER))
        peer.setsockopt(zmq.ROUTING_ID, route)
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(self.address)
        return peer

    def known_peer(self, stack: ExitStack, route: bytes, owner: int | None = 7) -> Any:
        """Connect a peer that has sent a whole message."""
        peer = self.peer(stack, route)
        peer.send(b"hello")
        assert self.read(owner) == route
        return peer

    def raw_peer(self, stack: ExitStack) -> socket.socket:
        """Connect a bare socket; all earlier connections must have been noted."""
        before = len(self.opened)
        port = int(self.address.rpartition(":")[2])
        peer = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        peer.settimeout(5.0)
        for ours, num_bytes in ((GREETING, len(GREETING)), (READY, 2)):
            peer.sendall(ours)
            while num_bytes > 0:  # until it has answered
                num_bytes -= len(peer.recv(num_bytes))
        self.wait_for(lambda: len(self.opened) > before)
        return peer


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def listener(stack: ExitStack) -> Listener:
    connections = Connections()
    connections.max_peer_bytes, connections.max_total_bytes = 20 * MEGABYTE, 30 * MEGABYTE
    return Listener("tcp://127.0.0.1:*", connections, stack)


def has_come(listener: Listener, nbytes: int) -> Callable[[], bool]:
    """Tell whether the kernel has got so much on all connections."""

    def ready() -> bool:
        listener.connections._measure(0.0)
        return sum(known.held for known in listener.connections._open.values()) >= nbytes

    return ready


def test_a_message_that_does_not_end_is_cut_off(listener, stack, monkeypatch) -> None:
    monkeypatch.setattr(zeromq_connections, "MAX_UNFINISHED_BYTES", 4 * MEGABYTE)
    peer, known = listener.raw_peer(stack), listener.peer(stack, b"known")
    peer.sendall(b"\x00\x05whole")  # so it has a whole message
    listener.read()
    listener.connections.drained()
    assert listener.check() == []
    for _ in range(6):
        peer.sendall(PART)
    wait_until(has_come(listener, 6 * MEGABYTE))
    listener.connections.drained()
    assert listener.check() == []  # it may end yet
    listener.connections.drained()
    (reason,) = listener.check()
    assert re.match("A message of node 7 has more than .* does not end", reason)
    listener.wait_for(lambda: len(listener.closed) == 1)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        peer.sendall(PART * 100)
    known.send(b"I am still here")
    assert listener.read() == b"known"


def test_a_long_message_that_ends_is_not_cut(listener, stack, monkeypatch) -> None:
    monkeypatch.setattr(zeromq_connections, "MAX_UNFINISHED_BYTES", 2 * MEGABYTE)
    peer = listener.known_peer(stack, b"peer")
    for _ in range(10):
        peer.send_multipart([bytes(MEGABYTE)] * 5)
        wait_until(has_come(listener, 5 * MEGABYTE))
        assert listener.check() == []  # nothing has been read meanwhile
        listener.read()
        listener.connections.drained()
        assert listener.check() == []
    assert listener.closed == []


def test_bytes_of_a_cut_peer_count_until_they_are_read(listener, stack) -> None:
    rogue = listener.known_peer(stack, b"rogue", 1)
    for _ in range(21):
        rogue.send(bytes(MEGABYTE))
    wait_until(has_come(listener, 21 * MEGABYTE))
    assert len(listener.check()) == 1
    listener.wait_for(lambda: len(listener.closed) == 1)
    listener.wait_for(lambda: len(listener.opened) == 2)  # it has come back
    listener.connections.note_read(source_of(b"rogue", 1, listener.opened[1]), 1, 5)
    (reason,) = listener.check()
    assert "bytes of node 1 wait to be read" in reason
    listener.wait_for(lambda: len(listener.closed) == 2)
    assert listener.check() == []  # no connection is left to be cut
    while listener.socket.poll(0):
        listener.read(1)
    listener.connections.drained()
    assert listener.check() == []


def test_all_together_may_not_take_more_than_their_share_of_the_memory(listener, stack) -> None:
    peers = [listener.known_peer(stack, b"%d" % owner, owner) for owner in range(3)]
    for peer, megabytes in zip(peers, (6, 16, 10), strict=True):
        for _ in range(megabytes):
            peer.send(bytes(MEGABYTE))
    wait_until(has_come(listener, 32 * MEGABYTE))
    (reason,) = listener.check()
    assert re.search("of node 1 wait to be read.* 31457280 for all nodes", reason)  # it has most


def test_connections_without_a_whole_message_share_a_small_limit(listener, stack, monkeypatch):
    monkeypatch.setattr(zeromq_connections, "MAX_UNFINISHED_BYTES", 4 * MEGABYTE)
    listener.known_peer(stack, b"known")
    listener.wait_for(lambda: len(listener.opened) == 1)
    strangers = [listener.raw_peer(stack) for _ in range(3)]
    for stranger in strangers:
        stranger.sendall(PART + PART)
    wait_until(has_come(listener, 6 * MEGABYTE))
    (reason,) = listener.check()
    assert "of an unknown node" in reason
    listener.wait_for(lambda: len(listener.closed) == 3)


def test_a_peer_with_too_many_connections_loses_the_oldest(listener, stack) -> None:
    for number in range(12):
        listener.known_peer(stack, b"%d" % number)
    listener.wait_for(lambda: len(listener.opened) == 12)
    oldest = listener.opened[:4]
    assert listener.check() == [
        "There were 12 connections of node 7; the limit is 8. The others were cut."
    ]
    listener.wait_for(lambda: len(listener.closed) >= 4)
    assert {*oldest} <= {*listener.closed}


def test_of_too_many_silent_connections_the_newest_are_cut(listener, stack) -> None:
    known = listener.known_peer(stack, b"known")
    listener.connections.num_peers = 1
    for _ in range(20):
        listener.raw_peer(stack)
    newest = listener.opened[-2:]
    assert listener.check() == [
        "There were 20 connections of an unknown node; the limit is 18. The others were cut."
    ]
    listener.wait_for(lambda: len(listener.closed) == 2)
    assert {*listener.closed} == {*newest}
    known.send(b"hello")
    assert listener.read() == b"known"


def test_a_peer_is_never_cut_while_its_messages_are_read(listener, stack) -> None:
    peer = listener.peer(stack, b"peer")
    for number in range(100):
        peer.send_multipart([b"h", bytes(MEGABYTE)] if number % 3 else [b"small"] * 20)
        listener.read()
        if number % 7 == 0:
            listener.connections.drained()
        listener.watch()
        assert listener.check() == []
    assert listener.closed == []


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_one_connection_can_be_cut_and_comes_back(scheme, stack, tmp_path) -> None:
    address = f"ipc://{tmp_path}/socket" if scheme == "ipc" else "tcp://127.0.0.1:*"
    listener = Listener(address, Connections(), stack)
    one, other = (listener.known_peer(stack, route) for route in (b"one", b"other"))
    listener.wait_for(lambda: len(listener.opened) == 2)
    listener.connections.cut(b"one")
    listener.connections.cut(b"nobody")
    listener.wait_for(lambda: len(listener.closed) == 1)
    listener.wait_for(lambda: len(listener.opened) == 3)
    one.send(b"again")
    assert listener.read() == b"one"
    other.send(b"still here")
    assert listener.read() == b"other"
    assert len(listener.closed) == 1


def test_a_descriptor_that_now_belongs_to_another_connection_is_left_alone() -> None:
    connections = Connections()
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        first = socket.create_connection(place)
        with server.accept()[0]:
            fd = first.fileno()
            connections.opened(fd, source_of(b"route", 3))
            first.close()
            with socket.create_connection(place) as second, server.accept()[0] as end:
                assert second.fileno() == fd
                connections.cut(b"route")
                assert connections.check(1.0)[1] == []
                second.sendall(b"alive")
                assert end.recv(5) == b"alive"


def test_a_closed_connection_does_no_harm() -> None:
    connections = Connections()
    reader, writer = os.pipe()
    connections.opened(reader)
    connections.note_read(source_of(b"route", fd=reader), 1, 10)
    os.close(reader)
    os.close(writer)
    connections.opened(reader)
    connections.note_read(source_of(b"route", fd=reader), 1, 10)
    connections.cut(b"route")
    connections.closed(reader)
    assert connections.check(1.0)[1] == []


def test_socket_files_are_not_checked(tmp_path: Path) -> None:
    connections = Connections()
    assert connections.check(0.0) == (float("inf"), [])
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))
        connections.opened(client.fileno(), source_of(b"route", 1))
        assert connections.check(0.0) == (float("inf"), [])
        with suppress(BlockingIOError):
            client.setblocking(False)
        connections.cut(b"route")
        assert client.recv(1) == b""
