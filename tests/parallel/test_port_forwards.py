"""Port forwards that accept connections before their node listens."""

from __future__ import annotations

import errno
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from socket import create_connection, create_server

import pytest
import zmq

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import AuthenticationError, DeadlineExceeded
from ding_lite.parallel.link.faults import DroppedMessages
from ding_lite.parallel.network.address import LOOPBACK
from ding_lite.parallel.network.security import make_key
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.base import Lane
from ding_lite.parallel.transport.zeromq.dealers import HUNG_UP, OPTIONS, Dealers
from tests.parallel.proxy import Proxy
from tests.parallel.tcp import hub_spec, leaf_spec, wait_until


@pytest.mark.parametrize(
    ("manner", "times"),
    [("closes", 8), ("resets", 8), ("hears, then closes", 8), ("stays silent", 4)],
)
def test_a_node_waits_for_node_0_behind_an_early_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manner: str, times: int
) -> None:
    monkeypatch.setitem(OPTIONS, zmq.HANDSHAKE_IVL, 300)
    key = str(make_key(tmp_path / "key"))
    with (
        Proxy("", turns_away=manner) as wire,
        closing(NodeRouter(leaf_spec(1, wire.address, 2, key_file=key))) as leaf,
    ):
        # Each lane dials by itself; three in a row were a refusal.
        wire.wait(lambda proxy: proxy.num_turned_away >= times)
        with closing(NodeRouter(hub_spec(2, key_file=key))) as hub:
            wire.lead_to(str(hub.address))
            leaf.wait_ready(20.0)
            hub.wait_ready(5.0)
            assert (hub.peers, leaf.peers) == ((1,), (0,))


def test_a_timeout_names_a_forward_without_a_backend(tmp_path, caplog) -> None:
    key = str(make_key(tmp_path / "key"))
    with Proxy("") as wire:
        leaf = NodeRouter(leaf_spec(1, wire.address, 2, key_file=key))
        with closing(leaf), pytest.raises(DeadlineExceeded, match="for node 0"):
            leaf.wait_ready(1.0)
    said = f"what listens at {wire.address} closes each connection without a greeting"
    assert said in caplog.text


@pytest.mark.parametrize("is_other", [True, False])
def test_what_another_connection_received_is_no_greeting(is_other: bool) -> None:
    """The number of a closed descriptor may belong to another connection when it is looked at."""
    with create_server((LOOPBACK, 0)) as listener, create_server((LOOPBACK, 0)) as other:
        address = f"tcp://{LOOPBACK}:{listener.getsockname()[1]}"
        dealers = Dealers(0, address)
        with create_connection((other if is_other else listener).getsockname()) as near:
            far, _ = (other if is_other else listener).accept()
            with far, closing(dealers):
                far.sendall(bytes(64))
                near.recv(64)
                reasons = []
                for _ in range(3):
                    dealers.note_opened(Lane.BULK, near.fileno())
                    reasons.append(dealers.note_failure(Lane.BULK, HUNG_UP, errno.EPIPE))
    assert [reason is not None for reason in reasons] == [False, False, not is_other]


def test_a_wrong_key_is_refused_through_a_forward(tmp_path: Path) -> None:
    key, wrong = (str(make_key(tmp_path / name)) for name in ("key", "wrong"))
    with Proxy("") as wire:
        leaf = NodeRouter(leaf_spec(1, wire.address, 2, key_file=wrong))
        with closing(leaf), closing(NodeRouter(hub_spec(2, key_file=key))) as hub:
            wire.wait(lambda proxy: proxy.num_turned_away >= 6)
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
            # Earlier connections may be counted late, and at once, so the slowest of three counts.
            assert max(_seconds_of_four(stranger.links.dropped) for _ in range(3)) > 0.4
        with closing(NodeRouter(replace(spec, key_file=key, incarnation=2))) as hub:
            hub.wait_ready(10.0)


def _seconds_of_four(dropped: DroppedMessages) -> float:
    """Wait until four more connections are dropped; return how long that took, in seconds."""
    began_at, enough = SYSTEM_CLOCK.now(), dropped.count + 4
    wait_until(lambda: dropped.count >= enough, "the node gave up")
    return SYSTEM_CLOCK.now() - began_at
