"""Nodes that are cut off from their job for good: replaced, or without any peer."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from ding_lite.errors import AuthenticationError, NodeReplaced, PeerLost
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.messaging.inbox import FINISH
from ding_lite.runtime.messaging.router import use_router
from ding_lite.runtime.task import Task
from tests.parallel.proxy import Proxy
from tests.parallel.tcp import Recorder, leaf_spec, wired

FIRST, SECOND = 2**60, 2**60 + 1
"""Incarnations of nodes that no launcher counts."""


class Running:
    """A task on a node, on a thread of its own, that goes on until it is ended."""

    def __init__(self, router: NodeRouter) -> None:
        self.error: BaseException | None = None
        self._router = router
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with use_router(self._router), Task() as task:
                task.use(lambda ctx: task.wait_for("what never comes")).run()
        except BaseException as error:  # noqa: BLE001 - compared by the test
            self.error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def end(self, timeout: float = 10.0) -> BaseException | None:
        self._thread.join(timeout)
        assert not self._thread.is_alive()
        return self.error


@contextmanager
def star(**more: Any) -> Iterator[tuple[ExitStack, NodeRouter, Proxy, NodeRouter]]:
    """Connect node 1 to node 0 over a wire."""
    with ExitStack() as stack, wired(incarnation=FIRST, **more) as (hub, leaf, wire):
        yield stack, hub, wire, leaf


def successor_of_leaf(hub: NodeRouter, wire: Proxy) -> NodeRouter:
    """Cut node 1 off, and let another process take its place."""
    recorder = Recorder(hub)
    wire.blackhole()
    recorder.wait(lambda: not hub.peers)
    successor = NodeRouter(leaf_spec(1, hub.address, 2, incarnation=SECOND))
    successor.wait_ready(10.0)
    return successor


def test_a_cut_off_node_that_was_replaced_ends_with_an_error() -> None:
    with star() as (stack, hub, wire, leaf):
        task = Running(leaf)
        successor = stack.enter_context(closing(successor_of_leaf(hub, wire)))
        own = Recorder(successor)

        wire.heal()
        error = task.end()
        assert isinstance(error, NodeReplaced)
        assert "Node 0 refuses it: another process has taken the place of node 1" in str(error)

        hub.emit("n", 1)
        own.wait(lambda: bool(own.events))
        leaf.close(good_bye=False)
        assert own.events == [(0, "n", (1,))]
        assert hub.peers == (1,)


def test_a_node_that_was_replaced_is_refused_also_when_its_successor_has_gone() -> None:
    """It would wait for events for ever that its successor has acknowledged."""
    with star() as (_, hub, wire, leaf):
        task = Running(leaf)
        successor_of_leaf(hub, wire).close()
        wire.heal()
        assert isinstance(task.end(), NodeReplaced)
        assert hub.peers == ()


def test_a_node_of_another_job_learns_that_before_that_its_number_is_taken() -> None:
    with star(job="a") as (stack, hub, _, _leaf):
        stranger = NodeRouter(leaf_spec(1, hub.address, 2, incarnation=SECOND, job="b"))
        stack.callback(stranger.close)
        with pytest.raises(AuthenticationError, match=r"belongs to another job \(b\)"):
            stranger.wait_ready(10.0)


@pytest.mark.parametrize("survivor", ["leaf", "hub"])
def test_a_node_without_any_peer_warns_and_ends_with_an_error_after_the_limit(
    survivor: str, caplog: pytest.LogCaptureFixture
) -> None:
    with star(peer_timeout=1.0) as (_, hub, _, leaf):
        left, gone = (leaf, hub) if survivor == "leaf" else (hub, leaf)
        task = Running(left)
        gone.close(good_bye=False)
        error = task.end()
        assert isinstance(error, PeerLost)
        assert re.match(r"Node \d is connected to no other node any more: node \d was", str(error))
        [warned] = [line for line in caplog.messages if "no connected peer left" in line]
        assert "and ends in 1 s unless one comes back (DING_LITE_PEER_TIMEOUT)" in warned
        left.emit("to no peer")


def test_a_peer_that_comes_back_in_time_keeps_a_node_going() -> None:
    with star(peer_timeout=1.0) as (stack, hub, _, leaf):
        task, recorder = Running(hub), Recorder(hub)
        leaf.close(good_bye=False)
        recorder.wait(lambda: not hub.peers)
        again = NodeRouter(leaf_spec(1, hub.address, 2, incarnation=SECOND))
        stack.callback(again.close)
        again.wait_ready(10.0)
        assert not threading.Event().wait(1.2)
        assert task.is_running
        again.emit(FINISH)
        assert task.end() is None


def test_a_node_goes_on_after_the_good_byes_of_its_peers() -> None:
    with star(peer_timeout=0.5) as (_, hub, _, leaf):
        task = Running(hub)
        leaf.close()
        assert not threading.Event().wait(1.0)
        assert task.is_running
        assert hub.is_active
        assert not hub.peers
        hub.finish()
        assert task.end() is None


def test_losing_all_peers_after_the_end_of_the_job_is_no_error() -> None:
    with star(peer_timeout=0.5) as (_, hub, _, leaf):
        hub.emit(FINISH)
        leaf.close(good_bye=False)
        assert not threading.Event().wait(1.0)
        assert hub.failure is None
