"""Addresses: syntax, reachability, and the private directory of a job."""

from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import ConfigError
from ding_lite.parallel.network import address as network
from ding_lite.parallel.network.address import MAX_IPC_PATH, Address, PrivateDirectory


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:50515", Address("tcp", "127.0.0.1", 50515)),
        ("tcp://node-3.cluster:1", Address("tcp", "node-3.cluster", 1)),
        ("tcp://[::1]:50515", Address("tcp", "::1", 50515)),
        ("tcp://*:0", Address("tcp", "*", 0)),
        ("ipc:///tmp/job/node-0", Address("ipc", "/tmp/job/node-0")),
        ("inproc://test", Address("inproc", "test")),
    ],
)
def test_an_address_is_read_as_it_is_written(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("127.0.0.1:50515", "must begin with one of ipc://, tcp://, inproc://"),
        ("udp://127.0.0.1:50515", "must begin with one of"),
        ("", "is no address"),
        ("tcp://127.0.0.1", "write tcp://host:port"),
        ("tcp://127.0.0.1:port", "write tcp://host:port"),
        ("tcp://::1:50515", "an IPv6 host in brackets"),
        ("tcp://127.0.0.1:50515/x", "write tcp://host:port"),
        ("tcp://127.0.0.1:-1", "write tcp://host:port"),
        ("tcp://127.0.0.1:70000", "`port` is 70000; it must lie between 0 and 65535"),
        ("ipc://", "names no place"),
        ("inproc://", "names no place"),
        ("ipc:///" + "x" * MAX_IPC_PATH, f"the kernel allows {MAX_IPC_PATH}"),
    ],
)
def test_malformed_addresses_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Address.parse(text)


@given(st.text())
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = Address.parse(text)
    except ConfigError:
        return
    assert Address.parse(str(address)) == address


def test_loopback_is_known_by_number_and_by_name() -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert network.is_loopback(host)
    for host in ("", "*", "0.0.0.0", "::", "10.0.0.7", "192.168.1.2", "fe80::1%eth0", "no such"):
        assert not network.is_loopback(host)


def test_an_address_that_is_no_host_is_not_called_open_to_other_machines() -> None:
    for host in ("127.0.0.1:50515", "[::1]", "tcp://127.0.0.1", "no such host"):
        with pytest.raises(ConfigError, match=f"{re.escape(host)}' cannot be looked up: .* a port"):
            network.check_listening(Address("tcp", host), key_file=None)


@pytest.mark.parametrize(
    ("numbers", "six"),
    [
        (["127.0.1.1", "fd00::8"], True),  # Debian has a line for the machine's own name
        (["127.0.1.1", "10.0.0.8", "fd00::8"], False),
        (["127.0.0.1", "::1"], False),
        (["::1"], True),
    ],
)
def test_a_loopback_address_of_a_host_does_not_choose_its_version_of_ip(
    numbers: list[str], six: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(host: str, *args: Any, **kwargs: Any) -> object:
        families = [socket.AF_INET6 if ":" in number else socket.AF_INET for number in numbers]
        return [(fam, 1, 6, "", (number, 0)) for fam, number in zip(families, numbers, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", names)
    assert network.is_ipv6("gpu08") is six


def test_free_ports_can_be_bound_and_are_all_different() -> None:
    ports = network.free_ports("127.0.0.1", 3)
    assert len(set(ports)) == 3
    for port in ports:
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "a" * 70])
def test_an_address_that_is_not_of_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=rf"`address` is '{host}', where this machine cannot"):
        network.free_ports(host, 2)


def test_other_users_cannot_enter_the_directory(tmp_path: Path) -> None:
    directory = PrivateDirectory(tmp_path)
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert directory.path.parent == tmp_path
    assert directory.socket_of(3) == Address("ipc", str(directory.path / "node-3"))
    directory.remove()
    assert list(tmp_path.iterdir()) == []
    directory.remove()


def test_the_directory_of_a_killed_job_or_node_is_removed_and_that_of_a_running_one_stays(
    tmp_path: Path,
) -> None:
    dead, alive = PrivateDirectory(tmp_path), PrivateDirectory(tmp_path)
    (dead.path / "node-0").touch()
    os.close(dead.lock_fd)  # as the kernel does for a process that was killed
    foreign = tmp_path / "ding_lite-without-a-lock"
    foreign.mkdir()

    PrivateDirectory(tmp_path).remove()
    assert {*tmp_path.iterdir()} == {foreign, alive.path}
    killed = PrivateDirectory(tmp_path)
    os.close(killed.lock_fd)
    alive.remove()  # by another node
    assert [*tmp_path.iterdir()] == [foreign]


def test_a_path_too_long_for_sockets_is_left_for_tmp(tmp_path, monkeypatch) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(deep))
    directory = PrivateDirectory()
    try:
        assert deep not in directory.path.parents
        assert len(str(directory.socket_of(99_999))) < MAX_IPC_PATH
    finally:
        directory.remove()
