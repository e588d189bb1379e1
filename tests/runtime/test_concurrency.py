"""Async mode: everything at once, one barrier, nothing swallowed and nothing left running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

import pytest

from ding_lite.errors import MiddlewareError
from ding_lite.runtime import Context, LocalRouter, Task, current_router, use_router
from ding_lite.testing import Cluster
from tests.forks import in_a_child
from tests.threads import switching_often


def meeting(num_parties: int) -> Callable[[Context], object]:
    """Make a function that returns only when `num_parties` of its calls run at once."""
    barrier = threading.Barrier(num_parties, timeout=10.0)
    return lambda ctx: barrier.wait() and None


def test_coroutines_run_at_the_same_time_as_functions_and_each_other() -> None:
    from_thread, from_loop = threading.Event(), asyncio.Event()

    def function(ctx: Context) -> None:
        from_thread.wait(10.0)

    async def second(ctx: Context) -> None:
        from_loop.set()

    async def first(ctx: Context) -> None:
        await from_loop.wait()
        from_thread.set()

    with Task(async_mode=True, n_async_workers=1) as task:
        task.use(function).use(first).use(second).run(max_step=1)
    assert from_thread.is_set()


def test_the_way_out_begins_behind_the_barrier_and_in_reverse_order() -> None:
    log: list[str] = []
    meet = meeting(3)

    def onion(name: str) -> Callable[[Context], Iterator[None]]:
        def _onion(ctx: Context) -> Iterator[None]:
            meet(ctx)
            log.append("in")
            yield
            log.append(f"out {name}")

        return _onion

    async def async_onion(ctx: Context) -> AsyncIterator[None]:
        log.append("in")
        yield
        log.append("out async")

    with Task(async_mode=True, n_async_workers=3) as task:
        task.use(onion("a")).use(async_onion).use(onion("b")).use(onion("c")).run(max_step=1)
    assert log == ["in"] * 4 + ["out c", "out b", "out async", "out a"]


def test_a_failure_cancels_the_coroutines_and_awaits_the_functions() -> None:
    log: list[str] = []
    begun, failed = threading.Event(), threading.Event()

    def slow(ctx: Context) -> None:
        begun.set()
        failed.wait(10.0)
        log.append("function ended")

    async def endless(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("coroutine cancelled")
            failed.set()

    async def bad(ctx: Context) -> None:
        while not begun.is_set():  # a function that has not begun is left out
            await asyncio.sleep(0)
        raise ValueError("no")

    with Task(async_mode=True) as task:
        task.use(slow).use(endless).use(bad)
        with pytest.raises(ValueError, match=r"no"):
            task.run(max_step=1)
        assert sorted(log) == ["coroutine cancelled", "function ended"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("async_mode", [False, True])
def test_a_task_goes_on_in_a_forked_process(async_mode: bool) -> None:
    async def coroutine(ctx: Context) -> None:
        ctx.from_loop = True

    def go_on() -> object:
        with task:
            task.run(max_step=1)
        return sorted(task.ctx.items())

    with Task(async_mode=async_mode) as task:
        task.use(lambda ctx: setattr(ctx, "here", True)).use(coroutine).run(max_step=1)
        in_child = in_a_child(go_on)
        assert in_child == "[('from_loop', True), ('here', True), ('total_step', 1)]"
        assert str(go_on()) == in_child


def test_middleware_with_a_lock_never_run_at_the_same_time() -> None:
    inside: list[int] = []
    most: list[int] = []

    def function(ctx: Context) -> None:
        inside.append(1)
        most.append(len(inside))
        inside.pop()

    async def coroutine(ctx: Context) -> None:
        inside.append(1)
        for _ in range(3):
            await asyncio.sleep(0)
            most.append(len(inside))
        inside.pop()

    async def async_onion(ctx: Context) -> AsyncIterator[None]:
        await coroutine(ctx)
        yield
        await coroutine(ctx)

    with Task(async_mode=True, n_async_workers=4) as task:
        for fn in (function, coroutine, function, coroutine, async_onion, function):
            task.use(fn, lock=True)
        task.run(max_step=50)
    assert max(most) == 1


def test_a_coroutine_cancelled_at_the_lock_does_not_take_it_along() -> None:
    waiting = threading.Event()

    def holder(ctx: Context) -> None:
        if ctx.total_step == 0:
            waiting.wait(10.0)

    async def _bad(ctx: Context) -> None:
        if ctx.total_step == 0:
            waiting.set()
            raise ValueError("no")

    async def waiter(ctx: Context) -> None: ...

    with Task(async_mode=True) as task:
        task.use(holder, lock=True).use(waiter, lock=True).use(_bad)
        with pytest.raises(ValueError, match=r"no"):
            task.run(max_step=1)
        task.run(max_step=1)  # would hang if the lock were still held


def test_coroutines_that_wait_for_a_lock_leave_the_threads_of_the_loop_to_its_holder() -> None:
    async def work(ctx: Context) -> None:
        await asyncio.wait_for(asyncio.to_thread(int), 10.0)

    with Task(async_mode=True) as task:
        for _ in range(34):  # the loop has at most 32 threads
            task.use(work, lock=True)
        task.run(max_step=1)


@pytest.mark.parametrize("async_mode", [False, True])
def test_wherever_a_middleware_runs_the_router_is_that_of_its_task(async_mode: bool) -> None:
    router = LocalRouter()
    found = []

    def look(ctx: Context) -> None:
        found.append(current_router())

    def onion(ctx: Context) -> Iterator[None]:
        look(ctx)
        yield
        look(ctx)

    async def coroutine(ctx: Context) -> None:
        look(ctx)

    async def async_onion(ctx: Context) -> AsyncIterator[None]:
        look(ctx)
        yield
        look(ctx)

    with use_router(router), Task(async_mode=async_mode) as task:
        task.use(look).use(onion).use(coroutine).use(async_onion).use(task.parallel(look, look))
        task.run(max_step=2)
    assert found == [router] * 2 * 8


def test_coroutines_that_functions_return_at_the_same_time_run_on_one_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    meet = meeting(8)

    async def note_loop(ctx: Context) -> None:
        loops.append(asyncio.get_running_loop())

    def begin(ctx: Context) -> Coroutine[None, None, None]:
        meet(ctx)
        return note_loop(ctx)

    for _ in range(5):  # each task starts a loop of its own
        loops.clear()
        with switching_often(), Task(async_mode=True, n_async_workers=8) as task:
            for _ in range(8):
                task.use(begin)
            task.run(max_step=1)
        assert len(loops) == 8
        assert len(set(loops)) == 1


def test_an_interrupt_is_raised_although_a_coroutine_blocks_the_loop() -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    async def block(ctx: Context) -> None:
        has_begun.set()
        may_end.wait()

    def interrupt() -> None:
        with Task(async_mode=True) as task:
            task.forward(block)
            has_begun.wait()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    may_end.set()


def test_a_task_runs_inside_of_a_running_loop() -> None:
    async def notebook() -> int:
        async def coroutine(ctx: Context) -> None:
            await asyncio.sleep(0)
            ctx.n = ctx.setdefault("n", 0) + 1
            ctx.keep("n")

        with Task() as task:
            task.use(coroutine).run(max_step=3)
        return int(task.ctx.n)

    assert asyncio.run(notebook()) == 3


def test_a_coroutine_lives_on_between_steps_on_the_same_loop() -> None:
    log: list[str] = []
    jobs: list[asyncio.Task[None]] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended with the task")

    async def starter(ctx: Context) -> None:
        if ctx.total_step == 0:
            jobs.append(asyncio.create_task(background()))
        await asyncio.sleep(0)
        assert not jobs[0].done()

    with Task() as task:
        task.use(starter).run(max_step=3)
        assert log == []
    assert log == ["ended with the task"]


def test_driving_a_coroutine_from_a_coroutine_is_refused() -> None:
    async def inner(ctx: Context) -> None: ...

    async def outer(ctx: Context) -> None:
        task.forward(inner, ctx)

    with Task() as task, pytest.raises(MiddlewareError, match=r"`await` the other one"):
        task.use(outer).run(max_step=1)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "wait",
    [
        lambda task: task.wait_for("go"),
        lambda task: task.receive("items"),
        lambda task: [task.send("items", 1, to="node.1") for _ in range(3)],
        lambda task: task.router.subscribe("topic").wait(),
        lambda task: task.router.call(0, "answer"),
        lambda task: task.wait_parallel_ctx(newer_than={"version": 1}),
    ],
)
def test_a_coroutine_that_would_block_all_others_is_refused(is_async: bool, wait) -> None:
    async def waits(ctx: Context) -> None:
        wait(task)

    with Cluster(2) as cluster, use_router(cluster.routers[1]), Task(async_mode=is_async) as task:
        task.use(waits)
        with pytest.raises(MiddlewareError, match="to_thread"):
            task.run(max_step=1)


def test_a_coroutine_may_wait_on_another_thread() -> None:
    heard: list[object] = []

    async def coroutine(ctx: Context) -> None:
        assert task.router.subscribe("topic").wait(timeout=0.0) is False
        waiting = asyncio.create_task(asyncio.to_thread(task.wait_for, "go"))
        while not waiting.done():
            task.emit("go", ctx.total_step)
            await asyncio.sleep(0)
        heard.append(await waiting)

    with Task(async_mode=True) as task:
        task.use(coroutine).run(max_step=2)
    assert heard == [((0,), {}), ((1,), {})]


def test_parallel_runs_its_parts_at_once_and_serial_in_order() -> None:
    log: list[str] = []

    def say(word: str) -> Callable[[Context], Iterator[None]]:
        def _say(ctx: Context) -> Iterator[None]:
            log.append(word)
            yield
            log.append(word.upper())

        return _say

    with Task(n_async_workers=1) as task:
        task.use(task.serial(say("a"), say("b")))
        for _ in range(3):  # each with threads of its own
            meet = meeting(2)
            task.use(task.parallel(meet, meet))
        task.use(task.sequence(say("c"), lambda ctx: log.append("d")))
        task.run(max_step=3)
    assert "".join(log) == "abcdCBA" * 3
    assert "parallel(lambda, lambda)" in str(task.draw())


def test_the_threads_of_a_composition_made_for_one_step_end_with_it() -> None:
    async def coroutine(ctx: Context) -> None: ...

    with Task() as task:
        for _ in range(3):
            task.forward(task.parallel(lambda ctx: None, coroutine)).renew()
            for thread in threading.enumerate():
                if thread.name.startswith("ding_lite-worker"):
                    thread.join(10.0)
                    assert not thread.is_alive()


@pytest.mark.parametrize("compose", ["serial", "parallel"])
def test_a_composition_is_an_onion_of_its_own_for_errors(compose: str) -> None:
    log: list[str] = []
    guarded = threading.Event()

    def guard(ctx: Context) -> Iterator[None]:
        try:
            guarded.set()
            yield
        except ZeroDivisionError:
            log.append("handled inside")

    def outer(ctx: Context) -> Iterator[None]:
        yield
        log.append("outer left as usual")

    def bad(ctx: Context) -> None:
        guarded.wait(10.0)  # else a failing step may end before it has begun
        raise ZeroDivisionError

    with Task() as task:
        task.use(outer).use(getattr(task, compose)(guard, bad)).run(max_step=1)
        task.forward(getattr(task, compose)(guard)).backward()
    assert log == ["handled inside", "outer left as usual"]
    with Task() as task:
        task.use(getattr(task, compose)(guard)).use(bad).run(max_step=1)
    assert log[2:] == ["handled inside"]
    with Task() as task, pytest.raises(ZeroDivisionError) as caught:
        task.use(getattr(task, compose)(lambda ctx: None, bad)).run(max_step=1)
    [note] = caught.value.__notes__
    assert note.startswith(f"in middleware `{compose}(lambda, bad)` (1st of 1), step 0, node 0")


def test_coroutines_in_parallel_share_the_loop_of_all_others() -> None:
    loops: list[object] = []

    async def note(ctx: Context) -> None:
        loops.append(asyncio.get_running_loop())

    with Task() as task:
        task.use(note).use(task.parallel(note, lambda ctx: None, task.serial(note)))
        task.run(max_step=2)
    assert len(loops) == 6
    assert len(set(loops)) == 1


def test_a_coroutine_that_a_function_returns_leaves_the_thread_to_others() -> None:
    ready: list[int] = []

    async def wait(ctx: Context) -> None:
        while not ready:
            await asyncio.sleep(0)

    async def go_on(ctx: Context) -> None:
        ready.append(1)

    with Task(async_mode=True, n_async_workers=1) as task:
        task.use_step_wrapper(lambda fn: lambda ctx: fn(ctx))
        task.use(wait).use(wait).use(go_on).run(max_step=1)
    assert ready


@pytest.mark.parametrize("async_mode", [False, True])
def test_any_awaitable_that_a_middleware_returns_is_awaited(async_mode: bool) -> None:
    class Request:
        def __await__(self) -> Iterator[None]:
            yield
            raise ZeroDivisionError

    with Task(async_mode=async_mode) as task, pytest.raises(ZeroDivisionError):
        task.use(lambda ctx: Request()).run(max_step=1)


def test_awaitables_that_locked_functions_return_do_not_run_at_the_same_time() -> None:
    inside, most = list[int](), list[int]()

    class Request:
        def __await__(self) -> Iterator[None]:
            inside.append(1)
            most.append(len(inside))
            yield
            inside.pop()

    with Task(async_mode=True) as task:
        for _ in range(3):
            task.use(lambda ctx: Request(), lock=True)
        task.run(max_step=3)
    assert most == [1] * 9


def test_many_coroutines_wait_on_threads_at_once() -> None:
    heard: list[object] = []
    num_waiting = 40

    async def wait(ctx: Context) -> None:
        heard.append(await asyncio.to_thread(task.wait_for, "go", 10.0))

    def go(ctx: Context) -> None:
        while len(heard) < num_waiting:
            task.emit("go")

    with Task(async_mode=True) as task:
        for _ in range(num_waiting):
            task.use(wait)
        task.use(go).run(max_step=1)
    assert all(heard)


def test_a_wait_that_a_coroutine_has_left_ends_with_its_task() -> None:
    async def ask(ctx: Context) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(task.wait_for, "never"), 0.01)

    with Task() as task:
        task.forward(ask).renew()


def test_errors_and_warnings_of_async_mode_name_the_middleware_within_its_wrapper() -> None:
    def good(ctx: Context) -> None: ...

    def bad(ctx: Context) -> None:
        raise ZeroDivisionError

    with Task(async_mode=True) as task:
        task.use_step_wrapper(lambda fn: lambda ctx: fn(ctx))
        task.use(good).use(bad)
        with pytest.raises(ZeroDivisionError) as caught:
            task.run(max_step=1)
    [note] = caught.value.__notes__
    assert note.startswith("in middleware `bad` (2nd of 2), step 0")


def test_a_locked_middleware_that_runs_a_locked_one_is_refused() -> None:
    def inner(ctx: Context) -> None: ...

    with Task() as task:
        task.use(inner, lock=True)
        task.use(lambda ctx: task.forward(inner) and None, lock=True)
        with pytest.raises(MiddlewareError, match="wait for itself"):
            task.run(max_step=1)
