"""Strangers at the port of a node: how many connections they get, and how much memory."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from time import monotonic

import pytest

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.parallel.network.address import Address
from ding_lite.parallel.network.security import make_key
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.zeromq.unauthenticated import (
    LOOK_EVERY_S,
    MAX_HANDSHAKE_BYTES,
    UnauthenticatedConnections,
    make_room_for_descriptors,
)
from tests.parallel.memory.processes import line_of
from tests.parallel.tcp import hub_spec, leaf_spec, wait_until
from tests.parallel.test_socket_fuzz import MEGABYTE, to_come


class Port:
    """A listening socket and what is accepted there."""

    def __init__(self, limit: int) -> None:
        self.stack = ExitStack()
        self.listener = self.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = self.listener.getsockname()[1]
        self.unauthenticated = UnauthenticatedConnections(port, 0, limit=limit)
        self.stack.callback(self.unauthenticated.close)
        self.here: list[socket.socket] = []
        """The sides of this process, in the order in which they were accepted."""
        self.there: list[socket.socket] = []

    def connect(self, number: int) -> None:
        enter = self.stack.enter_context
        for _ in range(number):
            self.there.append(enter(socket.create_connection(self.listener.getsockname())))
            self.here.append(enter(self.listener.accept()[0]))

    def check(self) -> tuple[list[int], list[str]]:
        SYSTEM_CLOCK.sleep(LOOK_EVERY_S)  # it is not looked at more often
        _, proved, reasons = self.unauthenticated.check(has_come=True)
        return proved, reasons

    def is_cut(self, number: int) -> bool:
        """Tell whether a connection was cut, seen from the other side."""
        self.there[number].setblocking(False)
        try:
            return self.there[number].recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def port() -> Iterator[Port]:
    found = Port(limit=5)
    with found.stack:
        yield found


def test_the_oldest_connections_are_cut_when_there_are_too_many(port: Port) -> None:
    port.connect(5)
    assert port.check() == ([], [])
    port.connect(3)
    _, [reason] = port.check()
    assert "8 connections had not proved that they have a key; the limit is 5" in reason
    wait_until(lambda: port.is_cut(2))
    assert [port.is_cut(k) for k in range(8)] == [True] * 3 + [False] * 5
    assert port.check() == ([], [])  # those that were cut are not cut again


def test_an_authenticated_connection_is_reported_once_and_not_counted(port: Port) -> None:
    port.connect(5)
    for number in (0, 3):
        port.here[number].sendall(bytes(300))  # as much as this node's side of a handshake
        assert len(port.there[number].recv(300, socket.MSG_WAITALL)) == 300
        port.there[number].sendall(bytes(2 * MAX_HANDSHAKE_BYTES))
    found: list[int] = []
    wait_until(lambda: found.extend(port.check()[0]) or len(found) == 2)
    assert sorted(found) == sorted(port.here[k].fileno() for k in (0, 3))
    assert len(port.unauthenticated) == 3
    port.connect(2)
    assert port.check() == ([], [])


def test_a_connection_that_brings_more_than_a_handshake_is_cut(port: Port) -> None:
    port.connect(3)
    port.there[0].sendall(bytes(MAX_HANDSHAKE_BYTES))
    port.there[1].sendall(bytes(MAX_HANDSHAKE_BYTES + 1))
    reasons: list[str] = []
    wait_until(lambda: reasons.extend(port.check()[1]) or bool(reasons))
    [reason] = reasons
    assert f"has brought {MAX_HANDSHAKE_BYTES + 1} bytes without proving" in reason
    wait_until(lambda: port.is_cut(1))
    assert [port.is_cut(k) for k in range(3)] == [False, True, False]


def test_other_sockets_and_files_of_the_process_are_left_alone(port: Port, tmp_path: Path) -> None:
    other = Port(limit=5)
    with other.stack:
        for name in range(20):
            other.stack.enter_context((tmp_path / f"{name}").open("w"))
        other.connect(20)
        port.connect(20)
        port.check()
        for one, two in zip(other.here, other.there, strict=True):
            one.sendall(b"x")
            assert two.recv(1) == b"x"
    assert len(port.unauthenticated) == 5


def test_cutting_works_where_no_descriptor_is_left(port: Port) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    port.connect(8)
    resource.setrlimit(resource.RLIMIT_NOFILE, (port.here[-1].fileno() + 1, hard))
    full = ExitStack()
    try:
        with suppress(OSError):
            while True:
                full.callback(os.close, os.dup(0))
        port.unauthenticated.check(has_come=True)
    finally:
        full.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_until(lambda: port.is_cut(2))


PRELUDE = "import sys; from tests.parallel.transport.zeromq.test_unauthenticated import *; "


def be_hub(directory: str) -> None:
    """Be node 0, allowed 1,024 descriptors, and compute and write files until the input ends."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    router = NodeRouter(hub_spec(2, key_file=f"{directory}/key"))
    os.write(1, f"{router.address}\n".encode())
    router.register("rss", lambda: int(os.pread(statm, 100, 0).split()[1]) * 4096)
    faults = 0
    router.register("faults", lambda: faults)
    os.set_blocking(0, False)
    while True:
        with suppress(BlockingIOError):
            if not os.read(0, 1):
                break
        try:
            for number in range(5):
                Path(directory, f"file {number}").write_bytes(b"x")
        except OSError:
            faults += 1
        sum(range(100_000))
    router.close()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, str]]:
    key = str(make_key(tmp_path / "key"))
    code = f"{PRELUDE}be_hub(sys.argv[1])"
    command, pipe = [sys.executable, "-c", code, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield line_of(process), key
        process.communicate(timeout=20.0)
    assert process.returncode == 0


def idle_connections(stack: ExitStack, address: str, number: int) -> list[socket.socket]:
    """Connect as fast as possible, and say nothing."""
    place = Address.parse(address)
    found = [stack.enter_context(socket.socket()) for _ in range(number)]
    for connection in found:
        connection.setblocking(False)
        connection.connect_ex((place.place, place.port))
    return found


def test_unauthenticated_connections_exhaust_neither_files_nor_memory(hub: tuple[str, str]) -> None:
    address, key = hub
    with ExitStack() as stack:
        idle_connections(stack, address, 1_200)
        leaf = stack.enter_context(closing(NodeRouter(leaf_spec(1, address, 2, key_file=key))))
        lost: list[int] = []
        leaf.on("node_lost", lost.append)
        started = monotonic()
        leaf.wait_ready(20.0)
        assert monotonic() - started < 15.0
        before = leaf.call(0, "rss", timeout=20.0)
        with ExitStack() as greedy:
            for connection in idle_connections(greedy, address, 100):
                wait_until(lambda c=connection: is_connected(c))  # type: ignore[misc]
                with suppress(OSError):
                    connection.send(to_come(15 * MEGABYTE) + bytes(200_000))
        wait_until(lambda: leaf.call(0, "rss", timeout=20.0) < before + 16 * MEGABYTE, seconds=20.0)
        assert leaf.call(0, "faults", timeout=20.0) == 0
        assert leaf.peers == (0,)
        assert not lost


def is_connected(connection: socket.socket) -> bool:
    """Tell whether a connection has been made, or refused."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != b"\x02"


def test_an_idle_lane_counts_as_authenticated(tmp_path: Path) -> None:
    key = str(make_key(tmp_path / "key"))
    with (
        closing(NodeRouter(hub_spec(2, key_file=key))) as router,
        closing(NodeRouter(leaf_spec(1, router.address, 2, key_file=key))) as leaf,
    ):
        leaf.wait_ready(10.0)
        transport = router._transport
        wait_until(lambda: len(transport._reader.unauthenticated) == 0)  # type: ignore[attr-defined]
        wait_until(lambda: len(transport._connections._open) == 2)  # type: ignore[attr-defined]


def test_room_for_descriptors_is_made_where_the_system_allows_it() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        make_room_for_descriptors()
        now, still = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert now == (4096 if hard == resource.RLIM_INFINITY else min(hard, 4096))
        assert still == hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        make_room_for_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
