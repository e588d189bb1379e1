"""Port forwards that accept connections before their node listens."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import AuthenticationError, DeadlineExceeded
from ding_lite.parallel.network.address import Address
from ding_lite.parallel.network.security import make_key
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.zeromq.dealers import OPTIONS
from tests.parallel.tcp import hub_spec, leaf_spec, wait_until

_RESET = struct.pack("ii", 1, 0)


class Forward:
    """A port forward that accepts connections without a backend, as `ssh -L` does.

    Args:
        manner: "closes" or "resets" each connection, "stays silent", or "hears, then closes": it
            reads what the other side has to say first.
    """

    def __init__(self, manner: str) -> None:
        self._manner = manner
        self._target: tuple[str, int] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self.num_refused = 0
        self._start(self._accept)

    def lead_to(self, address: str) -> None:
        """Forward connections from now on."""
        place = Address.parse(address)
        self._target = place.place, place.port

    def wait_refused(self, number: int) -> None:
        """Wait for a number of failed connections."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.num_refused >= number, 15.0)

    def _start(self, run: object, *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                if self._target is None:
                    self._turn_away(connection)
                    continue
                other = socket.create_connection(self._target)
                self._open.append(other)
                self._start(self._pump, connection, other)
                self._start(self._pump, other, connection)

    def _turn_away(self, connection: socket.socket) -> None:
        if self._manner == "hears, then closes":
            connection.recv(64)
        if self._manner == "resets":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if self._manner != "stays silent":
            connection.close()
        with self._changed:
            self.num_refused += 1
            self._changed.notify_all()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(65_536):
                sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5.0)


@contextmanager
def forward(manner: str) -> Iterator[Forward]:
    with closing(Forward(manner)) as found:
        yield found


@pytest.mark.parametrize(
    ("manner", "times"),
    [("closes", 12), ("resets", 12), ("hears, then closes", 12), ("stays silent", 4)],
)
def test_a_node_waits_for_node_0_behind_an_early_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manner: str, times: int
) -> None:
    monkeypatch.setitem(OPTIONS, zmq.HANDSHAKE_IVL, 500)
    key = str(make_key(tmp_path / "key"))
    with forward(manner) as wire:
        leaf = NodeRouter(leaf_spec(1, wire.address, 2, key_file=key))
        with closing(leaf):
            wire.wait_refused(times)  # each lane dials by itself; three in a row were a refusal
            with closing(NodeRouter(hub_spec(2, key_file=key))) as hub:
                wire.lead_to(str(hub.address))
                leaf.wait_ready(20.0)
                hub.wait_ready(5.0)
                assert (hub.peers, leaf.peers) == ((1,), (0,))


def test_a_timeout_names_a_forward_without_a_backend(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = str(make_key(tmp_path / "key"))
    with forward("closes") as wire:
        leaf = NodeRouter(leaf_spec(1, wire.address, 2, key_file=key))
        with closing(leaf), pytest.raises(DeadlineExceeded, match="for node 0"):
            leaf.wait_ready(2.0)
    assert f"what listens at {wire.address} hangs up without a word" in caplog.text


def test_a_wrong_key_is_refused_through_a_forward(tmp_path: Path) -> None:
    key, wrong = (str(make_key(tmp_path / name)) for name in ("key", "wrong"))
    with forward("closes") as wire:
        leaf = NodeRouter(leaf_spec(1, wire.address, 2, key_file=wrong))
        with closing(leaf), closing(NodeRouter(hub_spec(2, key_file=key))) as hub:
            wire.wait_refused(6)
            wire.lead_to(str(hub.address))
            with pytest.raises(AuthenticationError, match="it has another key"):
                leaf.wait_ready(15.0)


def test_a_node_that_comes_back_with_another_key_is_named_and_dialled_slowly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, other = (str(make_key(tmp_path / name)) for name in ("key", "other"))
    hub = NodeRouter(hub_spec(2, key_file=key))
    address = str(hub.address)
    with closing(NodeRouter(leaf_spec(1, address, 2, key_file=key))) as leaf:
        with closing(hub):
            hub.wait_ready(10.0)
            leaf.wait_ready(10.0)
            hub.close(good_bye=False)
        spec = hub_spec(2, listen=address, key_file=other, incarnation=1)
        with closing(NodeRouter(spec)) as stranger:
            reason = "node 0 is not there yet: it has another key"
            wait_until(lambda: reason in caplog.text, "no reason in the log")
            dropped, began_at = stranger.links.dropped, SYSTEM_CLOCK.now()
            enough = dropped.count + 10
            wait_until(lambda: dropped.count >= enough, "the node gave up")
            assert SYSTEM_CLOCK.now() - began_at > 1.0
        with closing(NodeRouter(replace(spec, key_file=key, incarnation=2))) as hub:
            hub.wait_ready(10.0)
