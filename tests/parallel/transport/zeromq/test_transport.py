"""ZeroMQ over ipc and over tcp: the contract of transports, and what only sockets can do wrong."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from ding_lite.errors import TransportError
from ding_lite.parallel.network.security import make_key
from ding_lite.parallel.transport.base import Lane, Transport
from ding_lite.parallel.transport.chunks import MAX_FRAME_BYTES
from ding_lite.parallel.transport.zeromq.transport import ZeroMQTransport
from tests.parallel.contract import PEERS, Bench, End, TransportContract, standing_still
from tests.parallel.tcp import bare_socket, wait_until

CONTROL, BULK = Lane.CONTROL, Lane.BULK


class SocketBench(Bench):
    def __init__(self, stack: ExitStack, scheme: str, directory: Path) -> None:
        super().__init__(stack)
        self.scheme = scheme
        self.proves = scheme == "tcp"
        self.key_file = str(make_key(directory / "key"))
        self._directory = directory
        self._num_places = 0

    def make(self, node_id: int) -> Transport:
        return ZeroMQTransport(node_id, peers=PEERS, key_file=self.key_file)

    def anywhere(self) -> str:
        self._num_places += 1
        return f"ipc://{self._directory}/{self._num_places}" if self.scheme == "ipc" else ANY_PORT


ANY_PORT = "tcp://127.0.0.1:0"


@pytest.fixture(params=["ipc", "tcp"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SocketBench]:
    with ExitStack() as stack:
        yield SocketBench(stack, request.param, tmp_path)


class TestContract(TransportContract):
    """The contract of transports."""


def test_a_socket_file_without_a_listener_is_taken_over(bench: SocketBench, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(tmp_path / "left-over"))
        left_over.listen()
        with pytest.raises(TransportError, match="cannot listen on ipc://"):
            bench.listener(at=f"ipc://{tmp_path}/left-over")
    hub, address = bench.listener(at=f"ipc://{tmp_path}/left-over")
    leaf, to_hub = bench.dialler(address)
    assert leaf.send(to_hub, CONTROL, b"hello")
    assert hub.hear(1) == [[b"hello"]]


def test_other_files_at_the_address_are_left_alone(bench: SocketBench, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(TransportError, match="cannot listen on ipc://"):
        bench.listener(at=f"ipc://{tmp_path}/folder")
    assert (tmp_path / "folder").is_dir()


def test_a_host_that_cannot_be_dialled_is_named(bench: SocketBench) -> None:
    for host in ("*", "a b"):
        with pytest.raises(TransportError, match=rf"Node 0 cannot be dialled .*{re.escape(host)}"):
            bench.end(1).transport.dial(0, f"tcp://{host}:50515")


@contextmanager
def rogue(bench: SocketBench, route: bytes) -> Iterator[tuple[End, Any]]:
    """Connect a bare socket to a node, which goes on to serve another peer afterwards."""
    hub, address = bench.listener()
    leaf, to_hub = bench.dialler(address)
    with (
        zmq.Context() as context,
        bare_socket(context, route, bench.key_file if bench.proves else None) as peer,
    ):
        peer.connect(address)
        yield hub, peer
    for frame in (b"and I", bytes(20_000_000)):
        assert leaf.send(to_hub, BULK, frame)
        hub.wait(lambda frame=frame: hub.contents[-1:] == [[frame]])  # type: ignore[misc]


def test_a_frame_that_is_too_large_cuts_off_only_its_sender(bench: SocketBench) -> None:
    with rogue(bench, b"raw-c") as (hub, peer):
        peer.send(b"fine")
        hub.wait(lambda: hub.contents == [[b"fine"]])
        peer.send(bytes(MAX_FRAME_BYTES + 1))
        hub.wait(lambda: "doubt" in hub.calls)  # its connection is gone


@pytest.mark.parametrize(
    ("route", "message", "count", "reason"),
    [
        (b"raw-?", [b"hello", b"there"], 1, "A message is of neither lane."),
        (b"raw-b", [b"x"] * 50_000, 1, "A message has 50000 frames; the limit is 1024."),
        (b"raw-b", [b"DCHK\1\2" + bytes(22), b"x"], 10, "A chunk is of no message"),
    ],
    ids=["neither lane", "too many frames", "chunks of nothing"],
)
def test_a_malformed_message_is_rejected(bench, route, message, count, reason) -> None:
    with rogue(bench, route) as (hub, peer):
        for _ in range(count):
            peer.send_multipart(message)
        hub.wait(lambda: len(hub.rejected) == count)
        assert all(text.startswith(reason) for text in hub.rejected)


def test_a_peer_that_sends_too_fast_is_the_only_one_cut_off(tmp_path: Path) -> None:
    with ExitStack() as stack:
        bench = SocketBench(stack, "tcp", tmp_path)
        hub, address = bench.listener()
        connections: Any = hub.transport._connections  # type: ignore[attr-defined]
        connections.max_peer_bytes = 32 * 2**20
        leaf, to_hub = bench.dialler(address)
        with zmq.Context() as context, bare_socket(context, b"raw-c", bench.key_file) as peer:
            peer.connect(address)
            peer.send(b"hello")
            hub.hear(1)
            wait_until(lambda: not (connections._fresh or connections._settled))  # it has looked
            with standing_still(hub):
                for _ in range(3_000):  # of which ZeroMQ keeps a thousand on this side
                    peer.send(bytes(65_536))
                connections._look_at = 0.0  # the next look is due
            hub.wait(lambda: bool(hub.rejected))
            assert "bytes of node 2 wait to be read" in hub.rejected[0]
            hub.wait(lambda: "doubt" in hub.calls)
        assert leaf.downs == []
        assert leaf.send(to_hub, CONTROL, b"and I")
        hub.wait(lambda: any(frames == [b"and I"] for _, frames in hub.messages))
