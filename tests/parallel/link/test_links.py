"""Messages that the calling thread sends at once, and interrupts of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from ding_lite.errors import DeadlineExceeded
from ding_lite.parallel.link.session import Session
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.base import Frame, Lane, Link
from ding_lite.parallel.transport.in_process import InprocTransport, Network
from ding_lite.parallel.wire.messages import Identity, Kind
from ding_lite.testing.cluster import Cluster
from tests.parallel.tcp import Recorder, hub_spec
from tests.threads import switching_often, together

Send = Callable[[Link, Lane, Sequence[Frame]], bool]


def change_send(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, change: Callable[[Send], Send]
) -> None:
    """Change how node 0 sends, on this thread; its transport's own thread sends as ever."""
    transport = cluster.routers[0]._transport
    usual, here = transport.send, threading.get_ident()
    changed = change(usual)

    def send(link: Link, lane: Lane, frames: Sequence[Frame]) -> bool:
        return (changed if threading.get_ident() == here else usual)(link, lane, frames)

    monkeypatch.setattr(transport, "send", send)


def test_events_calls_and_answers_do_not_wait_for_a_listener_of_their_sender() -> None:
    is_inside, may_leave, came = threading.Event(), threading.Event(), threading.Event()
    with Cluster(2) as cluster:
        recorder = Recorder(cluster.routers[1])
        cluster.routers[0].on("stand still", lambda: is_inside.set() or may_leave.wait())
        cluster.routers[1].register("answer", came.set)
        cluster.routers[1].emit("stand still")
        is_inside.wait()
        cluster.routers[0].emit("n", 1)
        answer = cluster.routers[0].ask(1, "answer")
        recorder.wait(lambda: recorder.numbers() == [1])
        assert came.wait(10.0)
        may_leave.set()
        assert answer.result(10.0) is None


@pytest.mark.parametrize("is_sent", [False, True])
def test_an_interrupt_of_emit_loses_and_repeats_nothing(monkeypatch, is_sent: bool) -> None:
    """It may come before the message has gone, or after that."""
    left = [1]

    def interrupt(usual: Send) -> Send:
        def send(link: Link, lane: Lane, frames: Sequence[Frame]) -> bool:
            left[0] -= 1
            if left[0] != 0:
                return usual(link, lane, frames)
            if is_sent:
                usual(link, lane, frames)
            raise KeyboardInterrupt

        return send

    with Cluster(2) as cluster:
        recorder = Recorder(cluster.routers[1])
        change_send(monkeypatch, cluster, interrupt)
        interrupted = []
        for number in range(10):
            try:
                cluster.routers[0].emit("n", number)
            except KeyboardInterrupt:
                interrupted.append(number)
            recorder.wait_for_numbers(number + 1)
        assert interrupted == [0]


def test_a_signals_handler_may_emit_in_the_middle_of_an_emit(monkeypatch) -> None:
    def interject(usual: Send) -> Send:
        def send(link: Link, lane: Lane, frames: Sequence[Frame]) -> bool:
            if not inner:
                inner.append(1)
                cluster.routers[0].emit("n", "inner")
            return usual(link, lane, frames)

        return send

    inner: list[int] = []
    with Cluster(2) as cluster:
        recorder = Recorder(cluster.routers[1])
        change_send(monkeypatch, cluster, interject)
        cluster.routers[0].emit("n", "outer")
        cluster.routers[0].emit("n", "last")
        recorder.wait(lambda: len(recorder.events) == 3)
        assert recorder.numbers() == ["outer", "inner", "last"]


def test_a_start_may_time_out_while_processes_are_refused() -> None:
    num_nodes = 1000
    others = range(1, num_nodes)
    spec = hub_spec(num_nodes, listen="inproc://hub")
    # From a job of another size, so each is refused, and the refusal noted for the error.
    strangers = [Session(Identity(peer, 1, num_nodes + 1, frozenset()), 0) for peer in others]
    hellos = [stranger.greeting(Kind.HELLO).frames() for stranger in strangers]
    router = NodeRouter(spec, transport=InprocTransport(Network(), 0, peers=others))

    def refuse_all() -> None:
        for hello in hellos:
            router.links.on_message(Link(b"of a stranger"), hello)

    def start() -> None:
        while True:
            with pytest.raises(DeadlineExceeded) as error:
                router.links.wait_ready(0.0)
            reason = f"Node {others[-1]} belongs to a job of 1001 nodes, this one has 1000."
            if f"as node {others[-1]} was refused: {reason}" in str(error.value):
                return

    with closing(router), switching_often():
        together(refuse_all, start)


def test_events_of_concurrent_threads_arrive_in_order_of_each_thread() -> None:
    def emit(node: int) -> None:
        for number in range(300):
            cluster.routers[0].emit(f"of {node}", number)

    with Cluster(3) as cluster:
        recorder: list[Any] = [Recorder(router) for router in cluster.routers[1:]]
        together(*(partial(emit, node) for node in range(4)))
        for each in recorder:
            for node in range(4):
                each.wait_for_numbers(300, f"of {node}")
