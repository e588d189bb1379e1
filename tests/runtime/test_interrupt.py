"""Ctrl-C: the step ends, everything closes, and only then it is raised."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

import pytest

from ding_lite.interruption import postponed
from ding_lite.runtime import Context, LocalRouter, Task, use_router
from ding_lite.runtime.interrupt import REPEAT_S, DeferredSigint, interruptible
from ding_lite.testing import ManualClock
from tests.threads import together


class Saver:
    """A middleware that writes at the end of a run."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __call__(self, ctx: Context) -> None:
        self.log.append("saver called")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.log.append(f"saved at {kind.__name__ if kind else 'the end'}")


def test_the_first_ctrl_c_lets_the_step_end_and_then_raises() -> None:
    log: list[str] = []

    def onion(ctx: Context) -> Iterator[None]:
        yield
        log.append(f"left, finish={ctx.finish}")

    def interrupt(ctx: Context) -> None:
        signal.raise_signal(signal.SIGINT)
        assert task.wait_for("never", timeout=10.0) is None  # the end of the job ends the wait
        assert task.router.subscribe("never").wait() is False

    with Task() as task, pytest.raises(KeyboardInterrupt):
        task.use(Saver(log)).use(onion).use(interrupt).use(lambda ctx: log.append("rest")).run()
    assert log == ["saver called", "rest", "left, finish=True", "saved at KeyboardInterrupt"]


def test_ctrl_c_ends_a_run_within_asyncio_run_too() -> None:
    log: list[str] = []

    async def program() -> None:
        Task().use(Saver(log)).use(lambda ctx: signal.raise_signal(signal.SIGINT)).run(max_step=3)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(program())
    assert log == ["saver called", "saved at KeyboardInterrupt"]


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_often_ends_the_run_in_order_with_the_shell_s_exit_code(clock, first):
    log: list[str] = []

    def terminate(ctx: Context) -> None:
        signal.raise_signal(first)  # the terminal is gone; systemd may send both
        for _ in range(4):  # as to a process and to its group; the last one still in time
            signal.raise_signal(signal.SIGTERM)
            clock.advance(REPEAT_S / 4)
        signal.raise_signal(signal.SIGHUP)
        assert task.wait_for("never", timeout=10.0) is None
        log.append("the step ended")

    with Task(clock=clock) as task, pytest.raises(SystemExit) as caught:
        task.use(Saver(log)).use(terminate).run()
    assert caught.value.code == 143
    assert log == ["saver called", "the step ended", "saved at Terminated"]


def test_a_programs_own_handler_may_finish_the_task_whatever_it_has_interrupted() -> None:
    lock, has_sent = threading.Lock(), threading.Event()

    class Locking(LocalRouter):
        """Takes a lock to send, as the router of a node with peers does."""

        def emit(self, event: str, /, *args: Any, **kwargs: Any) -> None:
            with lock:
                has_sent.set()

    def interrupt(ctx: Context) -> None:
        with lock:
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: setattr(task, "finish", True))
    try:
        with use_router(Locking()), Task() as task:
            task.use(interrupt).use(lambda ctx: has_sent.wait(10.0) and None).run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (has_sent.is_set(), task.ctx.total_step) == (True, 0)


@pytest.mark.parametrize(
    ("second", "after_s", "error"),
    [(signal.SIGINT, REPEAT_S, KeyboardInterrupt), (signal.SIGTERM, 0.0, SystemExit)],
)
def test_the_second_signal_raises_at_once(clock, second, after_s: float, error) -> None:
    log: list[str] = []

    def interrupt(ctx: Context) -> None:
        signal.raise_signal(signal.SIGINT)
        log.append("went on after the first")
        clock.advance(after_s)
        signal.raise_signal(second)
        log.append("never here")

    with Task(clock=clock) as task, pytest.raises(error) as caught:
        task.use(interrupt).run()
    assert getattr(caught.value, "code", 143) == 143
    assert log == ["went on after the first"]


class Slow(Saver):
    """Gets a signal while it writes."""

    def __init__(self, log: list[str], signum: signal.Signals = signal.SIGINT) -> None:
        super().__init__(log)
        self.signum = signum

    def __exit__(self, *how: Any) -> None:
        signal.raise_signal(self.signum)
        super().__exit__(*how)


@pytest.mark.parametrize(
    ("signum", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
@pytest.mark.parametrize("comes_first", ["in the step", "while it is saved"])
def test_a_signal_while_the_run_is_saved_does_not_break_that_off(signum, error, comes_first, clock):
    def interrupt(ctx: Context) -> None:
        if comes_first == "in the step":
            signal.raise_signal(signum)

    log: list[str] = []
    with Task(clock=clock) as task, pytest.raises(error):
        task.use(Slow(log, signum)).use(interrupt).run(max_step=1)
    assert log[-1].startswith("saved at")
    assert task.ctx.total_step == 0


def test_a_signal_while_a_failed_run_closes_is_raised_after_it() -> None:
    log: list[str] = []
    with Task() as task, pytest.raises(KeyboardInterrupt) as caught:
        task.use(Slow(log)).use(lambda ctx: 1 / 0).run()
    assert isinstance(caught.value.__context__, ZeroDivisionError)
    assert log[-1] == "saved at ZeroDivisionError"


def test_the_second_ctrl_c_also_ends_the_wait_at_the_barrier(clock: ManualClock) -> None:
    release, announced, closed = threading.Event(), threading.Event(), list[str]()

    def slow(ctx: Context) -> None:
        threading.Timer(0.0, _press_twice).start()
        release.wait(10.0)

    def _press_twice() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        announced.wait(10.0)
        clock.advance(REPEAT_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    async def around(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        finally:
            closed.append("around")

    async def tell(ctx: Context) -> None:
        while not ctx.finish:
            await asyncio.sleep(0)
        announced.set()

    task = Task(async_mode=True, clock=clock).use(around).use(slow).use(tell)
    with pytest.raises(KeyboardInterrupt), task:
        task.run()
    assert closed == ["around"]
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("ding_lite"):
            thread.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_a_step_has_forked_ends_by_a_signal(signum: signal.Signals) -> None:
    """The handlers of a run defer signals, and a forked process has them too."""

    def step(_: Context) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(writer, b"up")  # a signal before is lost: Python drops those of the parent
            while True:
                time.sleep(0.05)
        assert os.read(reader, 2) == b"up"
        os.kill(pid, signum)
        os.close(reader)
        os.close(writer)
        ended.append(os.waitpid(pid, 0)[1])

    ended: list[int] = []
    with Task() as task:
        task.use(step).run(max_step=2)
    assert list(map(os.waitstatus_to_exitcode, ended)) == [-signum] * 2


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_signal_that_came_is_named(signum: signal.Signals, caplog) -> None:
    taken: list[int] = []
    with interruptible(taken.append):
        signal.raise_signal(signum)
    for thread in threading.enumerate():
        if thread.name == "interrupt":
            thread.join()
    assert taken == [signal.SIGTERM if signum == signal.SIGHUP else signum]
    assert caplog.messages == [
        f"{signum.name}: the run ends after this step; once more ends it at once"
    ]


def test_handlers_are_as_before_when_a_run_has_ended() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    inside: list[object] = []
    with Task() as task:
        task.use(lambda ctx: inside.append(signal.getsignal(signal.SIGINT))).run(max_step=1)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert inside[0] is not before[0]


def test_a_program_s_own_handler_is_left_alone() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, frame: received.append(signum))
    try:
        with interruptible(lambda _: received.append(-1)) as interruption:
            signal.raise_signal(signal.SIGINT)
        interruption.raise_if_any()
    finally:
        signal.signal(signal.SIGINT, before)
    assert received == [signal.SIGINT]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_for_the_end_of_a_postponed_block(signum: signal.Signals) -> None:
    log: list[str] = []
    before = signal.signal(signum, lambda number, frame: log.append("came"))
    try:
        with postponed():
            signal.raise_signal(signum)
            log.append("done")
        assert log == ["done", "came"]
        signal.raise_signal(signum)
        assert log == ["done", "came", "came"]
    finally:
        signal.signal(signum, before)


def test_elsewhere_than_on_the_main_thread_nothing_is_postponed_or_installed() -> None:
    handler = signal.getsignal(signal.SIGINT)
    deferred, seen = DeferredSigint(), list[object]()

    def work() -> None:
        with postponed(), deferred.installed():
            seen.extend([signal.getsignal(signal.SIGINT), deferred.thread])

    together(work)
    assert seen == [handler, None]


def test_deferred_sigint_raises_ctrl_c_at_the_end_of_its_block_and_elsewhere_at_once() -> None:
    log: list[str] = []
    deferred = DeferredSigint(lambda: log.append("hurry"))

    def be_patient() -> None:
        with deferred:
            signal.raise_signal(signal.SIGINT)
            assert deferred.is_pending
            log.append("done")

    with deferred.installed():
        states = [deferred.thread]
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                be_patient()
            assert not deferred.is_pending
        with deferred:
            log.append("quiet")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert log == ["hurry", "done", "hurry", "done", "quiet"]
    assert [*states, deferred.thread] == [threading.get_ident(), None]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_deferred_sigint_gives_way_to_the_run_of_a_task_and_to_a_programs_own_handler() -> None:
    deferred, seen = DeferredSigint(), list[int]()
    with deferred.installed():
        with interruptible(lambda _: None, announce=False) as interruption:
            signal.raise_signal(signal.SIGINT)
        assert interruption.signum == signal.SIGINT
        assert repr(signal.getsignal(signal.SIGINT)) == repr(deferred)

    before = signal.signal(signal.SIGINT, lambda signum, frame: seen.append(signum))
    try:
        with deferred.installed():
            assert deferred.thread is None
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
