"""Events: in order, on the task's own time, and never lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ding_lite.errors import CodecError, ConfigError, DeadlineExceeded
from ding_lite.runtime import Context, Task, use_router
from ding_lite.runtime.messaging.messages import Emission
from ding_lite.testing import Cluster


def test_listeners_run_in_their_order_before_what_they_emit_and_before_emit_returns() -> None:
    received: list[object] = []
    with Task() as task:
        task.on("a", lambda *args, **kwargs: task.emit("b") and received.append((args, kwargs)))
        task.on("a", lambda *args, **kwargs: received.append("second listener of a"))
        task.on("b", lambda: received.append("b"))
        task.use(lambda ctx: task.emit("a", 0.1, why="plateau") and received.append("after"))
        task.run(max_step=1)
    first = ((0.1,), {"why": "plateau"})
    assert received == [first, "second listener of a", "b", "after"]


def test_events_from_other_threads_are_delivered_between_two_middleware() -> None:
    log: list[str] = []
    emitted = threading.Event()

    def speak() -> None:
        task.emit("news", "x")
        emitted.set()

    def first(ctx: Context) -> None:
        speaker = threading.Thread(target=speak)
        speaker.start()
        emitted.wait()
        speaker.join()
        log.append("first")

    with Task() as task:
        task.on("news", lambda what: log.append(f"{what} on {threading.current_thread().name}"))
        task.use(first).use(lambda ctx: log.append("second"))
        task.run(max_step=1)
    assert log == ["first", f"x on {threading.current_thread().name}", "second"]


def test_events_of_many_threads_keep_the_order_of_each_without_loss() -> None:
    received: list[tuple[int, int]] = []

    def send(sender: int) -> None:
        for number in range(250):
            task.emit("n", sender, number)

    def receive(ctx: Context) -> None:
        ctx.finish = len(received) == 1_000

    with Task() as task, ThreadPoolExecutor(4) as pool:
        task.on("n", lambda sender, number: received.append((sender, number)))
        sent = pool.map(send, range(4))
        task.use(receive).run()
        assert len([*sent]) == 4
    assert sorted(received, key=lambda event: event[0]) == [
        (k, n) for k in range(4) for n in range(250)
    ]


def test_an_exception_of_a_listener_ends_the_run_as_a_middleware_s_does() -> None:
    closed: list[str] = []

    def onion(ctx: Context):
        try:
            yield
        finally:
            closed.append("onion")

    def _listener() -> None:
        raise ValueError("no")

    with Task() as task:
        task.on("e", _listener)
        task.use(onion).use(lambda ctx: task.emit("e"))
        with pytest.raises(ValueError, match=r"no") as caught:
            task.run(max_step=5)
    assert caught.value.__notes__ == [
        "in listener `listener` of event `e`, step 0, node 0, labels: node.0, standalone"
    ]
    assert closed == ["onion"]
    assert task.ctx.total_step == 0


def test_once_listens_once_and_off_removes_a_listener() -> None:
    received: list[str] = []

    def always() -> None:
        received.append("always")

    with Task() as task:
        task.once("event", lambda: received.append("once")).on("event", always)
        task.emit("event").emit("event")
        task.off("event", always).emit("event")
        assert received == ["once", "always", "always"]
        task.once("event", lambda: received.append("itself") or task.emit("event"))
        task.emit("event")
        assert received[3:] == ["itself"]
        task.on("event", lambda: 1 / 0).on("event", lambda: 1 / 0)
        task.off("event").emit("event")
        with pytest.raises(ConfigError, match=r'No such listener of `evnt`. Did you mean "event"'):
            task.on("event", print).off("evnt")
        task.on("event", print).off("event", print).on("other", print)
        with pytest.raises(ConfigError, match=r"listener of `event`\. Events .* are: other\."):
            task.off("event")


async def _read() -> None: ...


@pytest.mark.parametrize(
    ("event", "fn", "message"),
    [
        ("", print, "a non-empty string, not ''"),
        (3, print, "a non-empty string, not 3"),
        ("e", None, "A listener of `e` is a function, not None"),
        ("e", _read, "A listener of `e` is a plain function, and `read` a coroutine, of which"),
    ],
)
def test_a_wrong_subscription_is_refused(event: str, fn: Any, message: str) -> None:
    task = Task()
    for on in (task.on, task.router.on):
        with pytest.raises(ConfigError, match=message):
            on(event, fn)


@pytest.mark.parametrize("name", ["", 3, None])
def test_only_a_name_can_be_emitted_sent_or_received(name: Any) -> None:
    task = Task()
    uses: list[Callable[[], object]] = [
        lambda: task.emit(name),
        lambda: task.emit(name, only_local=True),
        lambda: task.router.on(name, print),
        lambda: task.router.send(name, 1, to="standalone", timeout=0.0),
        lambda: task.router.receive(name, timeout=0.0),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match=f"is a non-empty string, not {name!r}"):
            use()
    with pytest.raises(CodecError, match="The name of an event is a non-empty string"):
        task.router.emit(name)


def test_emit_refuses_an_event_without_receivers_and_the_event_of_the_latch() -> None:
    with pytest.raises(ConfigError, match=r"`only_local` and `only_remote`"):
        Task().emit("e", only_local=True, only_remote=True)
    with pytest.raises(ConfigError, match=r"task.finish = True"):
        Task().emit("finish")


def test_finish_of_another_thread_is_heard_in_the_run_that_it_ends(monkeypatch) -> None:
    """Also if that thread is slow to announce it: the task sees the latch before."""
    received: list[int] = []
    with Cluster(2) as cluster, use_router(cluster.routers[0]), Task() as task:
        has_ended, emit = threading.Event(), task.router.emit

        def emit_late(event: str, *args: Any) -> None:
            if event == "finish":
                assert not has_ended.wait(0.1)
            emit(event, *args)

        monkeypatch.setattr(task.router, "emit", emit_late)
        task.on("finish", lambda: received.append(task.ctx.total_step))
        threads: list[threading.Thread] = []

        def finish_elsewhere(ctx: Context) -> None:
            if len(threads) == len(received):
                threads.append(threading.Thread(target=setattr, args=(task, "finish", True)))
                threads[-1].start()

        task.use(finish_elsewhere)
        for run in range(2):
            task.run()
            threads[run].join()
            assert len(received) == run + 1


class TestWaitFor:
    """Blocking until an event comes."""

    @pytest.mark.parametrize("async_mode", [False, True])
    def test_it_returns_the_arguments_and_delivers_other_events(self, clock, async_mode) -> None:
        """A listener is what answers: without delivery the wait would never end."""
        got: list[object] = []

        def ask(ctx: Context) -> None:
            clock.until_waiting()
            task.emit("question")

        def wait(ctx: Context) -> None:
            asker = threading.Thread(target=ask, args=[ctx])
            if not async_mode:
                asker.start()
            got.append(task.wait_for("answer", timeout=10.0))
            if not async_mode:
                asker.join()

        with Task(async_mode=async_mode, n_async_workers=2, clock=clock) as task:
            task.on("question", lambda: task.emit("answer", 42, why="x"))
            task.use(wait).use(ask if async_mode else print).run(max_step=1)
        assert got == [Emission((42,), {"why": "x"})]

    def test_a_wait_past_its_deadline_names_its_event_and_leaves_another_one_alone(self, clock):
        with Task(clock=clock) as task, ThreadPoolExecutor(2) as pool:
            patient = pool.submit(task.wait_for, "news", 9.0)
            clock.until_waiting(1)
            hasty = pool.submit(task.wait_for, "news", 3.0)
            clock.until_waiting(2)
            clock.advance(3.0)
            with pytest.raises(DeadlineExceeded, match="No event `news` came within 3 s"):
                hasty.result(10.0)
            task.emit("news", 1)
            assert patient.result(10.0) == Emission((1,), {})
