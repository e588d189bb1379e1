"""Impossible messages from a peer with the key are refused or dropped, and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import zmq

from ding_lite.errors import CodecError, PeerLost
from ding_lite.parallel.link.faults import MAX_FAULTS, DroppedMessages
from ding_lite.parallel.link.session import Session
from ding_lite.parallel.transport.base import Lane, Link
from ding_lite.parallel.transport.chunks import split
from ding_lite.parallel.wire.codec import encode
from ding_lite.parallel.wire.messages import Envelope, Identity, Kind, pack_batch
from ding_lite.testing import Cluster
from ding_lite.testing.clock import ManualClock
from tests.parallel.contract import End
from tests.parallel.tcp import Job, wait_until
from tests.parallel.test_socket_fuzz import as_node_2

PLACE = {"num_nodes": 3, "labels": ["distributed", "node.2"]}
GREETING = {**PLACE, "first_kept": 1, "seen_epoch": 0, "seen": 0}
IMPOSSIBLE: list[dict[str, Any]] = [
    *({"first_kept": number} for number in (0, -5, 2**64 - 1, True, 1.0, None)),
    *({"seen": number} for number in (-1, 2**64 - 1, False, "0")),
    *({"seen_epoch": number} for number in (-1, 0.0)),
    {"seen_epoch": 7, "seen": 1},  # of node 0, which has sent nothing
    *({"num_nodes": number} for number in (-3, 2**63, True, 4)),
    *({"labels": labels} for labels in ("node.2", [""], [5], ["a b"], ["x" * 5_000], [None])),
    {"labels": [f"label{k}" for k in range(2_000)]},
    *({key: text} for key in ("memory", "job") for text in (5, "x" * 5_000, b"x")),
]


def hello(incarnation: int = 2, **changes: Any) -> Envelope:
    meta = encode({**GREETING, **changes}).meta
    return Envelope(kind=Kind.HELLO, src=2, dst=0, incarnation=incarnation, meta=meta)


def session() -> Session:
    return Session(Identity(0, 7, 3, frozenset({"node.0"})), 2)


def test_an_impossible_handshake_is_refused_without_effect() -> None:
    here = session()
    for changes in IMPOSSIBLE:
        with pytest.raises(CodecError) as caught:
            here.greet(hello(**changes), 0.0)
        assert len(str(caught.value)) < 500
        assert not here.is_open, changes
        assert here.peer is None
    here.greet(hello(), 0.0)
    for envelope in here.greeting(Kind.WELCOME), here.ping():
        envelope.frames()  # every number in them fits its place


def test_a_handshake_of_the_same_incarnation_cannot_skip_events() -> None:
    here = session()
    here.greet(hello(), 0.0)
    with pytest.raises(CodecError, match="has not got the 1th yet"):
        here.greet(hello(first_kept=5), 0.0)
    here.greet(hello(incarnation=3, first_kept=5), 0.0)  # a new one may: its events began before


def found(kind: Kind, body: Any = None, **more: Any) -> list[Any]:
    meta = b"" if body is None else encode(body).meta
    fields = {"kind": kind, "src": 2, "dst": 0, "incarnation": 9, "meta": meta, **more}
    return Envelope(**fields).frames()


def event(seq: int) -> list[Any]:
    return found(Kind.EVENT, seq=seq, meta=pack_batch([encode(["said", None, seq]).meta]))


def call(name: object, *args: Any) -> list[Any]:
    return found(Kind.CALL, [name, None, *args], seq=1)


DROPPED: dict[str, Callable[[], list[Any]]] = {
    "an event that comes again": lambda: event(1),
    "an event after a gap": lambda: event(5),
    "an event of number 0": lambda: event(0),
    "credit that is not owed": lambda: found(Kind.CREDIT, seq=3),
    "an answer that nothing waits for": lambda: found(Kind.REPLY, [True, 1], seq=99),
    "of another incarnation": lambda: found(Kind.PING, incarnation=8),
    "an acknowledgement of what was not sent": lambda: found(Kind.ACK, ack=2**64 - 1),
    "a refusal of what is connected": lambda: found(Kind.REFUSE, "go away"),
    "a refusal that is no greeting": lambda: found(Kind.REFUSE, {"seen": 1}),
    "a ctx key that begins with _": lambda: found(Kind.STATE, {"ctx/_x": 1}, seq=1),
    "a ctx key that is a method": lambda: found(Kind.STATE, {"ctx/values": 1}, seq=1),
    "a ctx of no keys": lambda: found(Kind.STATE, [1], seq=1),
    "an item without a number": lambda: call("ding_lite.item", 9, "work", "1", 1, 1),
    "an item that is older than the oldest": lambda: call("ding_lite.item", 9, "work", 1, 5, 1),
    "an item of a negative number": lambda: call("ding_lite.item", 9, "work", -1, -1, 1),
    "a withdrawal of a text": lambda: call("ding_lite.withdraw", 9, "12"),
    "a name that is none": lambda: call(5),
}


def test_every_dropped_message_is_counted(cluster, rogue, caplog) -> None:
    end, link = rogue
    hub, send = cluster.routers[0], partial(end.send, link, Lane.CONTROL)
    before = hub.links.dropped.count
    send(*found(Kind.PING))  # before a handshake
    wait_until(lambda: hub.links.dropped.count == before + 1)
    send(*found(Kind.HELLO, GREETING))
    send(*event(1))
    wait_until(lambda: 2 in hub.peers)
    with caplog.at_level(logging.WARNING):
        for name, message in DROPPED.items():
            before = hub.links.dropped.count
            send(*message())
            wait_until(lambda before=before: hub.links.dropped.count == before + 1, name)  # type: ignore[misc]
            assert hub.peers == (1, 2), name
    assert "could not be handled" not in caplog.text


def test_the_words_of_a_peer_cannot_control_the_terminal(caplog: pytest.LogCaptureFixture) -> None:
    dropped = DroppedMessages(ManualClock(), owner=lambda link: None, drop=lambda link: None)
    dropped.add("Topic `\x1b[2J`")
    assert r"\x1b[2J" in caplog.text
    assert "\x1b" not in caplog.text


def test_an_incomplete_large_message_is_counted(job: Job) -> None:
    context: zmq.Context[Any] = zmq.Context()
    with context, as_node_2(context, job, Lane.BULK) as lane:
        before = job.hub.links.dropped.count
        for stream in (1, 2):
            [announcement, *_] = split([bytes(9 * 2**20)], stream)
            lane.send_multipart(announcement)
        wait_until(lambda: job.hub.links.dropped.count == before + 1)


def test_a_peer_that_is_gone_gets_no_more_calls(cluster: Cluster, rogue: tuple[End, Link]) -> None:
    end, link = rogue
    hub = cluster.routers[0]
    end.send(link, Lane.CONTROL, *found(Kind.HELLO, GREETING))
    wait_until(lambda: 2 in hub.peers)
    end.send(link, Lane.CONTROL, *found(Kind.BYE))
    wait_until(lambda: 2 not in hub.peers)
    with pytest.raises(PeerLost):
        hub.call(2, "double", 1, timeout=5.0)


def send_rubbish(end: End, link: Link, count: int) -> None:
    end.do(lambda: [end.transport.send(link, Lane.CONTROL, [b"rubbish"]) for _ in range(count)])


def goes_on(cluster: Cluster) -> bool:
    return bool(cluster.routers[0].call(1, "double", 4, timeout=10.0) == 8)


def test_a_peer_with_a_thousand_malformed_messages_is_disconnected_and_may_return(
    cluster: Cluster, rogue: tuple[End, Link], caplog: pytest.LogCaptureFixture
) -> None:
    end, link = rogue
    with caplog.at_level(logging.WARNING):
        for turn in range(1, 3):
            send_rubbish(end, link, MAX_FAULTS)
            assert goes_on(cluster)
            assert len(end.downs) == turn - 1
            send_rubbish(end, link, 1)
            end.wait(lambda turn=turn: len(end.downs) == turn)  # type: ignore[misc]
            end.wait(lambda turn=turn: len(end.ups) == turn + 1)  # type: ignore[misc]
    assert caplog.text.count("dropped the link to node 2 after 1001 malformed") == 2
    assert goes_on(cluster)
    assert cluster.routers[0].links.dropped.count == 2 * (MAX_FAULTS + 1)
