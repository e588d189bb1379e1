"""Nodes that are cut off from their job for good: replaced, or without any peer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from ding_lite.errors import NodeReplaced, PeerLost
from ding_lite.parallel.link import session
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.messaging.inbox import FINISH
from ding_lite.runtime.messaging.router import use_router
from ding_lite.runtime.task import Task
from tests.parallel.proxy import Proxy
from tests.parallel.tcp import Recorder, leaf_spec, wired

FIRST, SECOND = 2**60, 2**60 + 1
"""Incarnations of nodes that no launcher counts."""


@contextmanager
def running(router: NodeRouter) -> Iterator[Future[None]]:
    """Run a task on a node that goes on until it is ended."""

    def run() -> None:
        with use_router(router), Task() as task:
            task.use(lambda ctx: task.wait_for("what never comes")).run()

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(run)


@contextmanager
def star(**more: Any) -> Iterator[tuple[NodeRouter, Proxy, NodeRouter]]:
    with wired(incarnation=FIRST, **more) as (hub, leaf, wire):
        yield hub, wire, leaf


@contextmanager
def successor_of_leaf(hub: NodeRouter) -> Iterator[NodeRouter]:
    """Let another process take the place of node 1, which node 0 has lost or is about to."""
    Recorder(hub).wait(lambda: not hub.peers)
    successor = NodeRouter(leaf_spec(1, hub.address, 2, incarnation=SECOND))
    try:
        successor.wait_ready(10.0)
        yield successor
    finally:
        successor.close(good_bye=False)


def test_a_cut_off_node_that_was_replaced_ends_with_an_error(monkeypatch) -> None:
    monkeypatch.setattr(session, "SILENCE_S", 1.0)
    monkeypatch.setattr(session, "HEARTBEAT_S", 0.3)
    with star() as (hub, wire, leaf), running(leaf) as task:
        wire.blackhole()
        with successor_of_leaf(hub) as successor:
            own = Recorder(successor)
            wire.heal()
            message = "Node 0 refuses it: another process has taken the place of node 1"
            with pytest.raises(NodeReplaced, match=message):
                task.result(10.0)
            hub.emit("n", 1)
            own.wait(lambda: bool(own.events))
            leaf.close(good_bye=False)
            assert own.events == [(0, "n", (1,))]
            assert hub.peers == (1,)


def test_a_node_that_was_replaced_is_refused_also_when_its_successor_has_gone(monkeypatch) -> None:
    """It would wait for events for ever that its successor has acknowledged."""
    monkeypatch.setattr(session, "SILENCE_S", 1.0)
    monkeypatch.setattr(session, "HEARTBEAT_S", 0.3)
    with star() as (hub, wire, leaf), running(leaf) as task:
        wire.blackhole()
        with successor_of_leaf(hub) as successor:
            successor.close()
            wire.heal()
            with pytest.raises(NodeReplaced):
                task.result(10.0)
            assert hub.peers == ()


@pytest.mark.parametrize("survivor", ["leaf", "hub"])
def test_a_node_without_any_peer_warns_and_ends_with_an_error_after_the_limit(
    survivor: str, caplog: pytest.LogCaptureFixture
) -> None:
    with star(peer_timeout=0.6) as (hub, _, leaf):
        left, gone = (leaf, hub) if survivor == "leaf" else (hub, leaf)
        message = r"^Node \d is connected to no other node any more: node \d was"
        with running(left) as task:
            gone.close(good_bye=False)
            with pytest.raises(PeerLost, match=message):
                task.result(10.0)
        [warned] = [line for line in caplog.messages if "no connected peer left" in line]
        assert "and ends in 1 s unless one comes back (DING_LITE_PEER_TIMEOUT)" in warned
        left.emit("to no peer")


def test_a_peer_that_comes_back_in_time_keeps_a_node_going() -> None:
    with star(peer_timeout=1.0) as (hub, _, leaf), running(hub) as task:
        leaf.close(good_bye=False)
        with successor_of_leaf(hub) as again:
            with pytest.raises(TimeoutError):
                task.result(1.2)
            again.emit(FINISH)
            task.result(10.0)


def test_a_node_goes_on_after_the_good_byes_of_its_peers() -> None:
    with star(peer_timeout=0.3) as (hub, _, leaf), running(hub) as task:
        leaf.close()
        with pytest.raises(TimeoutError):
            task.result(0.6)
        assert (hub.is_active, hub.peers) == (True, ())
        hub.finish()
        task.result(10.0)


def test_losing_all_peers_after_the_end_of_the_job_is_no_error() -> None:
    with star(peer_timeout=0.3) as (hub, _, leaf):
        hub.emit(FINISH)
        leaf.close(good_bye=False)
        assert not threading.Event().wait(0.6)
        assert hub.failure is None
