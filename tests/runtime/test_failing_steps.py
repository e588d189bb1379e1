"""A step of async mode in which one middleware raises: each blocked call beside it ends at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from ding_lite import middleware as mw
from ding_lite.distributed import World
from ding_lite.errors import DeadlineExceeded, StepCancelled
from ding_lite.runtime import Context, Task, concurrency, use_router
from ding_lite.testing import Cluster

Waiting = Callable[[Task, Context], object]
"""Waits for what never comes; what it returns is looked at by the test."""


class Broken(Exception):
    """The error of the other middleware."""


def _wait_for(task: Task, ctx: Context) -> object:
    return task.wait_for("never")


def _receive(task: Task, ctx: Context) -> object:
    return task.receive("never", timeout=None)


def _send(task: Task, ctx: Context) -> object:
    return [task.send("work", k, to="node.0", in_flight=1, timeout=None) for k in (1, 2)][1] or None


def _loop_on_ctx(task: Task, ctx: Context) -> object:
    while not ctx.finish:
        threading.Event().wait(0.001)
    return None if ctx["finish"] and ctx.get("finish") else "ctx.finish is False"


def _loop_on_the_task_in_a_thread_of_its_own(task: Task, ctx: Context) -> object:
    def watch() -> None:
        while not task.finish:
            threading.Event().wait(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    return None


def _watch(task: Task, ctx: Context) -> object:
    watch = task.router.subscribe("ctx/train_iter")
    assert watch.wait(lambda newest: False, until=lambda: ctx.finish)
    return None


def _watch_without_until(task: Task, ctx: Context) -> object:
    return task.router.subscribe("never").wait() or None


def _raw_receive(task: Task, ctx: Context) -> object:
    return task.router.receive("never", timeout=None)


def _raw_send(task: Task, ctx: Context) -> object:
    return [task.router.send("raw", k, to="node.0", in_flight=1, timeout=None) for k in (1, 2)]


def _call(task: Task, ctx: Context) -> object:
    task.router.register("slow", Future)
    return task.router.call(0, "slow", timeout=None)


AS_AT_THE_END = [
    *(_wait_for, _receive, _send, _loop_on_ctx, _watch, _watch_without_until),
    _loop_on_the_task_in_a_thread_of_its_own,
]
WAITS: list[tuple[Waiting, object]] = [(fn, None) for fn in AS_AT_THE_END]
WAITS += [(fn, StepCancelled) for fn in (_raw_receive, _raw_send, _call)]


def bad(ctx: Context) -> None:
    raise Broken


def run_beside(waiting: Waiting, *, late: bool = False) -> tuple[BaseException, list[object]]:
    """Run a step of which one part waits and the other one raises; return the error, the outcome.

    Args:
        waiting: What the one part does.
        late: Whether it begins to wait only when the other one has raised.
    """
    begins, has_raised = threading.Event(), threading.Event()
    outcomes: list[object] = []

    def wait(ctx: Context) -> None:
        begins.set()
        if late:
            has_raised.wait(10.0)
            while not ctx.finish:
                threading.Event().wait(0.001)
        try:
            outcomes.append(waiting(task, ctx))
        except BaseException as error:
            outcomes.append(type(error))
            raise

    def bad(ctx: Context) -> None:
        begins.wait(10.0)
        if not late:  # so that it is most likely in its wait; either way it must end
            threading.Event().wait(0.02)
        has_raised.set()
        raise Broken

    with Task(async_mode=True) as task:
        task.use(wait).use(bad)
        with pytest.raises(Broken) as caught:
            task.run(max_step=1)
        assert not task.finish  # the job has not been ended by it
    return caught.value, outcomes


@pytest.mark.parametrize("late", [False, True], ids=["during", "after"])
@pytest.mark.parametrize(("waiting", "outcome"), WAITS, ids=[fn.__name__ for fn, _ in WAITS])
def test_waits_end_as_at_the_end_of_the_job(waiting: Waiting, outcome: object, late: bool) -> None:
    error, outcomes = run_beside(waiting, late=late)
    assert type(error) is Broken
    assert error.__notes__ == [
        "in middleware `bad` (2nd of 2), step 0, node 0, labels: async, node.0, standalone"
    ]
    assert outcomes == [outcome]


@pytest.mark.parametrize("kind", ["coroutine", "async generator", "generator", "serial coroutine"])
def test_an_error_of_a_function_ends_waits_of_every_other_shape(kind: str) -> None:
    log: list[str] = []

    async def coroutine(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    async def async_generator(ctx: Context) -> AsyncIterator[None]:
        await coroutine(ctx)
        yield

    def generator(ctx: Context) -> Iterator[None]:
        task.wait_for("never")
        log.append("ended")
        yield

    with Task(async_mode=True) as task:
        shapes: dict[str, Any] = {
            "coroutine": coroutine,
            "async generator": async_generator,
            "generator": generator,
            "serial coroutine": task.serial(coroutine),
        }
        with pytest.raises(Broken):
            task.use(shapes[kind]).use(bad).run(max_step=1)

    assert log in (["ended"], [])  # a coroutine may be cancelled before its first line


async def _bad_coroutine(ctx: Context) -> None:
    raise Broken


async def _bad_async_generator(ctx: Context) -> AsyncIterator[None]:
    if ctx.total_step == 0:
        raise Broken
    yield


def _bad_generator(ctx: Context) -> Iterator[None]:
    if ctx.total_step == 0:
        raise Broken
    yield


@pytest.mark.parametrize("bad", [_bad_coroutine, _bad_async_generator, _bad_generator])
def test_an_error_of_every_other_shape_ends_the_wait_of_a_function(bad: Any) -> None:
    received: list[object] = []
    with Task(async_mode=True) as task:
        task.use(lambda ctx: received.append(task.wait_for("never"))).use(bad)
        with pytest.raises(Broken):
            task.run(max_step=1)
    assert received in ([None], [])


def fails_after(begins: threading.Event) -> Callable[[Context], None]:
    """Return a middleware that raises once another one has begun."""

    def bad(ctx: Context) -> None:
        begins.wait(10.0)
        raise Broken

    return bad


def _in_parallel(task: Task, wait: Any) -> None:
    begins = threading.Event()
    task.use(task.parallel(lambda ctx: wait(begins), fails_after(begins)))


def _in_a_composition(task: Task, wait: Any) -> None:
    begins = threading.Event()
    part = task.parallel(task.serial(lambda ctx: wait(begins)), lambda ctx: None)
    task.use(task.serial(part)).use(fails_after(begins))


def _in_a_thread_of_a_coroutine(task: Task, wait: Any) -> None:
    begins = threading.Event()

    async def coroutine(ctx: Context) -> None:
        await asyncio.to_thread(wait, begins)

    task.use(coroutine).use(fails_after(begins))


def _in_a_listener(task: Task, wait: Any) -> None:
    begins = threading.Event()
    task.on("begin", lambda: wait(begins))
    task.use(lambda ctx: task.emit("begin")).use(fails_after(begins))


@pytest.mark.parametrize(
    "place", [_in_parallel, _in_a_composition, _in_a_thread_of_a_coroutine, _in_a_listener]
)
def test_a_wait_ends_with_an_error_beside_it_wherever_it_stands(place: Any) -> None:
    received: list[object] = []

    def wait(begins: threading.Event) -> None:
        begins.set()
        try:
            received.append(task.wait_for("never"))
        except StepCancelled as error:  # a thread may look up only when the step is over
            received.append(type(error))

    with Task(async_mode=place is not _in_parallel) as task:
        place(task, wait)
        with pytest.raises(Broken):
            task.run(max_step=1)
    assert received == [None] or (
        place is _in_a_thread_of_a_coroutine and received == [StepCancelled]
    )


def test_the_error_of_a_listener_ends_the_waits_beside_it() -> None:
    received: list[object] = []
    is_waiting = threading.Event()

    def wait(ctx: Context) -> None:
        is_waiting.set()
        received.append(task.wait_for("never"))

    def emit(ctx: Context) -> None:
        is_waiting.wait(10.0)
        task.emit("e", ctx)

    with Task(async_mode=True) as task:
        task.on("e", bad)
        task.use(wait).use(emit)
        with pytest.raises(Broken) as caught:
            task.run(max_step=1)
    assert received == [None]
    assert caught.value.__notes__ == [
        "in listener `bad` of event `e`, step 0, node 0, labels: async, node.0, standalone"
    ]


def test_several_errors_beside_a_wait_are_a_group_without_it() -> None:
    meet = threading.Barrier(2, timeout=10.0)

    def bad(ctx: Context) -> None:
        meet.wait()
        raise Broken

    def worse(ctx: Context) -> None:
        meet.wait()
        raise KeyError("worse")

    def wait(ctx: Context) -> None:
        task.router.receive("never", timeout=None)

    with Task(async_mode=True) as task:
        task.use(bad).use(wait).use(worse)
        with pytest.raises(ExceptionGroup) as caught:
            task.run(max_step=1)
    assert [type(error) for error in caught.value.exceptions] == [Broken, KeyError]
    notes = [error.__notes__[0].split(",")[0] for error in caught.value.exceptions]
    assert notes == ["in middleware `bad` (1st of 3)", "in middleware `worse` (3rd of 3)"]


def test_what_has_not_begun_when_the_step_fails_does_not_begin() -> None:
    log: list[str] = []
    begins = threading.Event()

    def wait(ctx: Context) -> None:
        begins.set()
        task.wait_for("never")

    async def bad(ctx: Context) -> None:
        await asyncio.to_thread(begins.wait, 10.0)
        raise Broken

    with Task(async_mode=True, n_async_workers=1) as task:
        task.use(task.serial(wait, lambda ctx: log.append("second part")))
        task.use(lambda ctx: log.append("second function"))
        task.use(bad)
        with pytest.raises(Broken):
            task.run(max_step=1)
    assert log == []


def test_what_waits_for_the_lock_does_not_begin_in_a_step_that_has_failed() -> None:
    log: list[str] = []
    begins = threading.Event()

    def wait(ctx: Context) -> None:
        begins.set()
        task.wait_for("never")

    with Task(async_mode=True) as task:
        task.use(wait, lock=True)
        task.use(lambda ctx: begins.wait(10.0) and log.append("has the lock"), lock=True)
        task.use(fails_after(begins))
        with pytest.raises(Broken):
            task.run(max_step=1)
    assert log == []


def test_a_generator_that_handles_the_error_lets_the_run_go_on_with_waits_that_wait() -> None:
    seen: list[object] = []

    def guard(ctx: Context) -> Iterator[None]:
        try:
            yield
        except Broken:
            seen.append(("handled", ctx.finish))

    def wait(ctx: Context) -> None:
        if ctx.total_step == 0:
            seen.append(task.wait_for("never"))
        else:
            message = task.wait_for("message", timeout=10.0)
            seen.append(message and message.args)

    def bad(ctx: Context) -> None:
        if ctx.total_step == 0:
            raise Broken
        while (False,) not in seen:
            task.emit("message", ctx.finish)
            threading.Event().wait(0.001)

    with Task(async_mode=True) as task:
        task.use(guard).use(wait).use(bad).run(max_step=2)
    # A function that has not begun when another one fails is skipped.
    assert seen in ([None, ("handled", False), (False,)], [("handled", False), (False,)])
    assert task.ctx.total_step == 1


@pytest.mark.parametrize("beside", ["function", "coroutine"])
def test_an_error_within_a_composition_that_handles_it_ends_no_wait_beside_it(beside: str) -> None:
    begins, fails, has_waited = threading.Event(), threading.Event(), threading.Event()
    seen: list[str] = []

    def guard(ctx: Context) -> Iterator[None]:
        try:
            yield
        except Broken:
            seen.append("handled")

    def wait_within(ctx: Context) -> None:
        begins.set()
        assert task.wait_for("never") is None
        assert ctx.finish
        assert task.finish
        fails.set()
        has_waited.wait(10.0)

    def function(ctx: Context) -> None:
        fails.wait(10.0)
        assert not ctx.finish
        with pytest.raises(DeadlineExceeded):
            task.wait_for("never", timeout=0.01)
        seen.append("waited")
        has_waited.set()

    async def coroutine(ctx: Context) -> None:
        await asyncio.to_thread(function, ctx)

    with Task(async_mode=True) as task:
        task.use(task.serial(guard, task.parallel(wait_within, fails_after(begins))))
        task.use(function if beside == "function" else coroutine)
        task.run(max_step=1)
    assert seen == ["waited", "handled"]


def test_a_generator_handles_an_error_that_is_raised_before_it_begins() -> None:
    handled = []

    def guard(ctx: Context) -> Iterator[None]:
        try:
            yield
        except Broken:
            handled.append(ctx.total_step)

    with Task(async_mode=True, n_async_workers=1) as task:
        task.use(bad).use(guard).run(max_step=3)
    assert handled == [0, 1, 2]


def test_an_async_generator_handles_an_error_that_is_raised_before_it_begins() -> None:
    handled = []

    async def hold_the_loop(ctx: Context) -> None:
        while not ctx.finish:
            threading.Event().wait(0.001)
        threading.Event().wait(0.05)  # until the step cancels its coroutines

    async def guard(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        except Broken:
            handled.append(ctx.total_step)

    with Task(async_mode=True) as task:
        task.use(hold_the_loop).use(guard).use(bad).run(max_step=3)
    assert handled == [0, 1, 2]


@pytest.mark.parametrize("ends_by", ["sync", "leaving"])
def test_what_was_started_by_hand_does_not_outlive_an_error(ends_by: str) -> None:
    received: list[object] = []
    begins = threading.Event()

    def wait(task: Task, ctx: Context) -> None:
        begins.set()
        received.append(task.wait_for("never"))

    def drive() -> None:
        with Task(async_mode=True) as task:
            task.forward(partial(wait, task))
            if ends_by == "sync":
                task.forward(fails_after(begins))
                assert task.wait_for("never") is None  # here, before this thread meets the others
                task.sync()
            begins.wait(10.0)
            raise Broken

    with pytest.raises(Broken):
        drive()
    assert received == [None]


def _wait_parallel_ctx(task: Task, ctx: Context) -> object:
    return task.wait_parallel_ctx(newer_than={"train_iter": 1})


def _rate_limit(task: Task, ctx: Context) -> object:
    ctx.env_step = 100
    return mw.rate_limit(env_steps_per_update=1.0, at_first=1.0, timeout=None)(ctx)


def _barrier(task: Task, ctx: Context) -> object:
    return World.current().group([0, 1]).barrier(timeout=None)


def _all_gather(task: Task, ctx: Context) -> object:
    return World.current().group([1, 0]).all_gather(1)


@pytest.mark.parametrize(
    ("waiting", "outcome"),
    [
        (_wait_parallel_ctx, None),
        (_rate_limit, None),
        (_barrier, StepCancelled),
        (_all_gather, StepCancelled),
    ],
)
def test_waits_for_another_node_end_where_the_step_fails(waiting: Waiting, outcome: object) -> None:
    with Cluster(2) as cluster, use_router(cluster.routers[0]):
        error, outcomes = run_beside(waiting)
    assert type(error) is Broken
    assert outcomes == [outcome]


def test_the_log_names_what_still_runs_when_a_step_has_failed(monkeypatch, caplog) -> None:
    monkeypatch.setattr(concurrency, "WARN_AFTER_S", 0.05)
    has_begun, is_named = threading.Event(), threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            is_named.set()

    def _deaf(ctx: Context) -> None:
        has_begun.set()
        is_named.wait(10.0)

    def _bad(ctx: Context) -> None:
        has_begun.wait(10.0)
        raise Broken("no")

    handler = Handler()
    concurrency.logger.addHandler(handler)
    try:
        with Task(async_mode=True) as task, pytest.raises(Broken):
            task.use(_deaf).use(_bad).run(max_step=1)
    finally:
        concurrency.logger.removeHandler(handler)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "a step has failed: `bad` raised Broken('no'); the error is raised once `deaf` has"
    )
