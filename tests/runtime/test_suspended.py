"""Generators that are suspended beside the task's thread: both halves run in one place."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest
import torch

from ding_lite.errors import MiddlewareError
from ding_lite.runtime import Context, Task
from ding_lite.runtime.messaging.messages import Emission
from ding_lite.runtime.middleware import LAST

THREADS = 3
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE", default=0)


@pytest.fixture(params=["task", "parallel"])
def run(request: pytest.FixtureRequest):
    def _run(*middleware, max_step: int = 3) -> None:
        with Task(async_mode=request.param == "task", n_async_workers=THREADS) as task:
            if request.param == "task":
                for fn in middleware:
                    task.use(fn)
            else:
                task.use(task.parallel(*middleware))
            task.run(max_step=max_step)

    return _run


def test_both_halves_of_a_generator_run_on_one_thread_whatever_it_holds(run) -> None:
    lock, halves, grads = threading.RLock(), list[tuple[int, int]](), list[bool]()

    def hold(ctx: Context) -> Iterator[None]:
        token, begun = VARIABLE.set(1), threading.get_ident()
        with lock, torch.no_grad(), np.errstate(all="ignore"):
            yield
        VARIABLE.reset(token)
        halves.append((begun, threading.get_ident()))

    def see(ctx: Context) -> None:
        grads.append(torch.is_grad_enabled())

    run(hold, see, see, see)
    assert [begun == left for begun, left in halves] == [True] * 3
    assert grads == [True] * 9


def test_more_generators_than_threads_are_open_and_as_many_functions_run_as_before(run) -> None:
    meet = threading.Barrier(THREADS, timeout=10.0)
    log: list[str] = []

    def onion(ctx: Context) -> Iterator[None]:
        log.append("in")
        yield
        log.append("out")

    run(*[onion] * 10, *[lambda ctx: meet.wait() and None] * THREADS)
    assert log == (["in"] * 10 + ["out"] * 10) * 3


def test_a_generator_handles_errors_and_yields_last_on_its_thread(run) -> None:
    log: list[object] = []

    def handle(ctx: Context) -> Iterator[object]:
        try:
            yield None
        except ZeroDivisionError:
            log.append("handled")
        yield LAST
        log.append("last")

    def outer(ctx: Context) -> Iterator[None]:
        yield
        log.append("outer")

    def bad(ctx: Context) -> None:
        raise ZeroDivisionError

    run(outer, handle, bad, max_step=1)
    assert log == ["handled", "outer", "last"]


def test_an_error_behind_the_yield_is_raised(run) -> None:
    def bad(ctx: Context) -> Iterator[None]:
        yield
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(bad)


def test_a_generator_that_is_never_resumed_is_closed_with_its_task() -> None:
    log: list[str] = []

    def hold(ctx: Context) -> Iterator[None]:
        try:
            yield
        finally:
            log.append("closed")

    with Task(async_mode=True) as task:
        task.forward(hold)
    assert log == ["closed"]


@pytest.mark.parametrize("async_mode", [False, True])
def test_finish_behind_the_yield_makes_the_step_the_last_one(async_mode: bool) -> None:
    def generator(ctx: Context) -> Iterator[None]:
        yield
        ctx.finish = True

    async def async_generator(ctx: Context) -> AsyncIterator[None]:
        yield
        ctx.finish = True

    for fn in (generator, async_generator):
        for compose in ("serial", "parallel"):
            with Task(async_mode=async_mode) as task:
                task.use(getattr(task, compose)(fn)).run(max_step=5)
            assert task.ctx.total_step == 0


@pytest.mark.parametrize("compose", [None, "parallel"])
def test_listeners_are_called_while_the_second_half_of_a_generator_waits(compose) -> None:
    has_answer, answers = threading.Event(), list[Emission | None]()

    def question() -> None:
        while not has_answer.wait(0.001):
            task.emit("question")

    def ask(ctx: Context) -> Iterator[None]:
        yield
        thread = threading.Thread(target=question)
        thread.start()
        answers.append(task.wait_for("answer", timeout=10.0))
        has_answer.set()
        thread.join()

    with Task(async_mode=compose is None) as task:
        task.on("question", lambda: task.emit("answer", 42))
        task.use(task.parallel(ask) if compose else ask).run(max_step=2)
    assert answers == [Emission((42,), {}), None]  # the job ends in the second step


@pytest.mark.parametrize("async_mode", [False, True])
def test_both_halves_of_an_async_generator_run_as_one_asyncio_task(async_mode: bool) -> None:
    seen: list[bool] = []

    async def hold(ctx: Context) -> AsyncIterator[None]:
        token, begun = VARIABLE.set(1), asyncio.current_task()
        yield
        VARIABLE.reset(token)
        seen.append(asyncio.current_task() is begun)

    with Task(async_mode=async_mode) as task:
        task.use(hold).run(max_step=3)
    assert seen == [True] * 3


@pytest.mark.parametrize("async_mode", [False, True])
def test_a_timeout_around_the_yield_of_an_async_generator_ends_the_step(async_mode: bool) -> None:
    handled: list[type] = []
    expired = threading.Event()

    async def limit(ctx: Context) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(0.0):
                yield
        except TimeoutError:
            expired.set()
            raise

    def see(ctx: Context) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            handled.append(type(error))
            raise

    async def slow(ctx: Context) -> None:
        await (asyncio.Event().wait() if async_mode else asyncio.to_thread(expired.wait))

    with Task(async_mode=async_mode) as task, pytest.raises(TimeoutError):
        task.use(see).use(limit).use(slow).run(max_step=1)
    assert handled == [TimeoutError]


def test_the_error_of_a_task_group_around_the_yield_is_raised() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def group(ctx: Context) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            yield

    with Task() as task, pytest.raises(ExceptionGroup) as caught:
        task.use(group).use(lambda ctx: None).run(max_step=1)
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]


def test_the_batch_of_a_step_does_not_live_on() -> None:
    class Batch: ...

    alive: list[weakref.ref[Batch]] = []

    async def onion(ctx: Context) -> AsyncIterator[None]:
        assert [ref() for ref in alive if ref() is not None] == []
        ctx.batch = Batch()
        alive.append(weakref.ref(ctx.batch))
        yield

    def generator(ctx: Context) -> Iterator[None]:
        yield

    gc.disable()
    try:
        for async_mode in (False, True):
            alive.clear()
            with Task(async_mode=async_mode) as task:
                if async_mode:
                    task.use(generator).use(onion)
                else:
                    task.use(task.parallel(generator, onion))
                task.run(max_step=4)
            assert len(alive) == 4
    finally:
        gc.enable()


def test_an_async_generator_of_a_composition_sees_its_error_in_a_step_that_has_failed() -> None:
    seen: list[type[BaseException]] = []
    begun = threading.Event()

    async def onion(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            seen.append(type(error))
            raise

    def fail_later(ctx: Context) -> None:
        begun.set()
        while not ctx.finish:
            threading.Event().wait(0.001)
        raise KeyError

    def fail(ctx: Context) -> None:
        begun.wait(10.0)
        begun.clear()
        raise ValueError

    for _ in range(20):
        with Task(async_mode=True) as task:
            task.use(task.parallel(onion, fail_later)).use(fail)
            with pytest.raises(ExceptionGroup):
                task.run(max_step=1)
    assert seen == [KeyError] * 20


def test_errors_of_a_second_half_and_of_a_listener_meanwhile_are_both_raised() -> None:
    def listen() -> None:
        raise KeyError

    def bad(ctx: Context) -> Iterator[None]:
        yield
        task.emit("heard")
        while task._messages.pending:
            threading.Event().wait(0.001)
        raise ZeroDivisionError

    with Task(async_mode=True) as task:
        task.on("heard", listen).use(bad)
        with pytest.raises(ExceptionGroup) as caught:
            task.run(max_step=1)
    assert {type(error) for error in caught.value.exceptions} == {KeyError, ZeroDivisionError}


def test_a_coroutine_that_drives_a_composition_is_refused() -> None:
    async def part(ctx: Context) -> None: ...

    async def drive(ctx: Context) -> None:
        task.forward(both)

    with Task() as task:
        both = task.parallel(part, part)
        with pytest.raises(MiddlewareError, match="`await` the other one"):
            task.use(drive).run(max_step=1)
