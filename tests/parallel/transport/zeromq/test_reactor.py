"""The reactor: the own thread and leading threads take turns."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ding_lite.parallel.observe.metrics_reporter import where_is
from ding_lite.parallel.transport.base import Frame, Lane, Link
from ding_lite.parallel.transport.zeromq import reactor
from ding_lite.runtime.messaging.router import use_router
from ding_lite.runtime.task import Task
from tests.parallel.contract import FOREVER_S, End
from tests.parallel.router.test_node_router import Start
from tests.parallel.tcp import wait_until
from tests.parallel.transport.zeromq.test_transport import SocketBench

CONTROL = Lane.CONTROL


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SocketBench]:
    with ExitStack() as stack:
        yield SocketBench(stack, "ipc", tmp_path)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread look up by itself: one that is not woken waits for ever."""
    monkeypatch.setattr(reactor, "LOOK_UP_S", FOREVER_S)


@contextmanager
def leading(end: End) -> Iterator[Future[None]]:
    """Let another thread lead within a block."""
    leads, is_over = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pumping = pool.submit(
            end.transport.pump, lambda: leads.set() or is_over.is_set(), FOREVER_S
        )
        leads.wait()
        yield pumping
        is_over.set()
        end.transport.wake_pump()


@pytest.mark.usefixtures("patient")
def test_a_waiting_thread_gets_messages_on_itself(bench: SocketBench) -> None:
    hub, leaf, to_leaf, _ = bench.both()
    leaf.callers.clear()
    for number in range(20):
        threading.Timer(0.01, hub.transport.send, [to_leaf, CONTROL, [b"%d" % number]]).start()
        leaf.transport.pump(lambda number=number: len(leaf.messages) > number, FOREVER_S)  # type: ignore[misc]
        assert len(leaf.messages) == number + 1
    assert threading.get_ident() in leaf.callers


@pytest.mark.usefixtures("patient")
def test_another_thread_wakes_the_pump(bench: SocketBench) -> None:
    _, leaf, _, _ = bench.both()
    for _ in range(200):
        is_ready = threading.Event()
        wakes = [is_ready.set, leaf.transport.wake_pump]
        thread = threading.Thread(target=lambda wakes=wakes: [wake() for wake in wakes])
        thread.start()
        leaf.transport.pump(is_ready.is_set, FOREVER_S)
        assert is_ready.is_set()
        thread.join()


@pytest.mark.usefixtures("patient")
def test_the_own_thread_ticks_while_another_one_leads(bench: SocketBench) -> None:
    hub, leaf, _, to_hub = bench.both()
    with leading(leaf):
        assert leaf.send(to_hub, CONTROL, b"on a turn that was asked for")
        assert hub.hear(1) == [[b"on a turn that was asked for"]]
        before = leaf.num_ticks
        leaf.turn_every_s = 0.01
        leaf.transport.wake()
        leaf.wait(lambda: leaf.num_ticks > before + 5)


@pytest.mark.usefixtures("patient")
def test_the_own_thread_takes_over_from_a_leader_in_time(bench: SocketBench) -> None:
    hub, leaf, to_leaf, _ = bench.both()

    def take(link: Link, frames: list[Frame]) -> None:
        leaf.turn_every_s = 0.01  # as an acknowledgement that is due soon
        note(link, frames)

    note, leaf.on_message = leaf.on_message, take  # type: ignore[method-assign]
    for number in range(20):
        leaf.turn_every_s = FOREVER_S
        leaf.do(lambda: None)
        threading.Timer(0.01, hub.transport.send, [to_leaf, CONTROL, [b"."]]).start()
        leaf.transport.pump(lambda number=number: len(leaf.messages) > number, FOREVER_S)  # type: ignore[misc]
        before = leaf.num_ticks
        leaf.wait(lambda before=before: leaf.num_ticks > before)  # type: ignore[misc]


@pytest.mark.usefixtures("patient")
def test_a_second_thread_does_not_lead(bench: SocketBench) -> None:
    _, leaf, _, _ = bench.both()
    with leading(leaf) as first:
        leaf.transport.pump(lambda: False, FOREVER_S)
        assert not first.done()


def test_a_call_of_the_sink_does_not_pump(bench: SocketBench) -> None:
    _, leaf, _, _ = bench.both()
    leaf.do(lambda: leaf.transport.pump(lambda: False, FOREVER_S))


def test_an_exception_of_ready_ends_the_lead_cleanly(bench: SocketBench) -> None:
    hub, leaf, to_leaf, _ = bench.both()

    with pytest.raises(ZeroDivisionError):
        leaf.transport.pump(lambda: bool(1 / 0), FOREVER_S)
    assert hub.send(to_leaf, CONTROL, b"still there")
    assert leaf.hear(1) == [[b"still there"]]


@pytest.mark.usefixtures("patient")
def test_tasks_that_answer_each_other_lose_no_event(start: Start) -> None:
    hub, leaf = start(2)
    num_rounds, answers, is_over = 1_000, list[int](), threading.Event()

    def answer() -> None:
        with use_router(leaf), Task() as task:
            task.on("ping", lambda number: task.emit("pong", number, only_remote=True))
            task.wait_for("over", timeout=60.0)

    with hub.deferred_sigint.installed(), use_router(hub), Task() as task:

        def tick() -> None:
            while not is_over.wait(0.001):
                task.emit("tick", only_local=True)

        threads = [threading.Thread(target=act) for act in (answer, tick)]
        for thread in threads:
            thread.start()
        task.on("pong", answers.append)
        for number in range(num_rounds):
            task.emit("ping", number, only_remote=True)
            while number % 10 == 9 and len(answers) <= number:  # ten at once
                task.wait_for("tick", timeout=60.0)
        task.emit("over", only_remote=True)
        is_over.set()
        for thread in threads:
            thread.join()
    assert answers == [*range(num_rounds)]


def test_ctrl_c_ends_the_wait_for_an_event(start: Start) -> None:
    hub, leaf = start(2)
    received = threading.Event()
    leaf.on("still there", received.set)
    with hub.deferred_sigint.installed(), use_router(hub), Task() as task:
        for _ in range(3):
            threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()
            with pytest.raises(KeyboardInterrupt):
                task.wait_for("never", timeout=FOREVER_S)
        task.emit("still there")
        assert received.wait(10.0)


def test_a_leading_thread_is_reported_as_waiting(start: Start) -> None:
    hub, leaf = start(2)
    begun = threading.Event()

    def wait() -> None:
        with use_router(leaf), Task() as task:
            begun.set()
            task.wait_for("over", timeout=FOREVER_S)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    wait_until(lambda: where_is(thread.ident or 0)[1])
    assert where_is(thread.ident or 0)[0].startswith("test_reactor.py:")
    hub.emit("over")
    thread.join()
