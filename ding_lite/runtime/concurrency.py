"""Threads and the event loop of a task, and the barrier at which a concurrent step ends.

What is ugly here and why: a step may mix plain functions, which block, with coroutines, which need
a loop, and the task may itself be called from a running loop (a notebook). So coroutines always run
on one loop on its own thread, the functions of a concurrent step run on worker threads, and the
task's thread waits at one barrier for both. A forked process has copies of these objects, but not
their threads, so they are started again there. Nothing outlives the barrier: on an error the
coroutines are cancelled and awaited. Functions cannot be cancelled, but their scope is: that ends
their waits, also those of nested steps, and the barrier waits for the functions to return.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import nullcontext
from contextvars import Context as Variables, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, NamedTuple
from weakref import finalize

from ding_lite.cancellation import CancelScope, Wait
from ding_lite.errors import MiddlewareError
from ding_lite.interruption import is_of_a_signal
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.base import CoroutineThread
from ding_lite.runtime.messaging.messages import Messages
from ding_lite.runtime.middleware import (
    Middleware,
    MiddlewareShape,
    name_of,
    named,
    refuse_result,
    refuse_second_yield,
    shape_of,
)

logger = logging.getLogger(__name__)

MAX_WORKERS = 64
"""The most threads of one `Workers`, if its jobs wait for each other."""
WARN_AFTER_S = 10.0
"""Seconds that a failed step waits before it logs which of its functions still run."""

OpenGenerator = Generator[Any, Any, Any]
"""A middleware that is suspended at its `yield` until the way out."""


class LoopThread:
    """An event loop on its own thread, started at its first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0
        self._starting = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and wait for it, never on the loop; a failing step cancels it."""
        done: SimpleQueue[asyncio.Task[Any]] = SimpleQueue()
        cancel = self.submit(coroutine, done.put)
        try:
            with Wait(cancel) as wait:
                if wait.is_over:
                    cancel()
                task = done.get()
        except BaseException:  # a second Ctrl-C: the result is not needed any more
            cancel()
            raise
        return task.result()

    @property
    def is_here(self) -> bool:
        """Whether this is the loop's own thread, where waiting for it would deadlock."""
        return threading.current_thread() is self._thread

    def submit(
        self,
        coroutine: Coroutine[Any, Any, Any],
        on_done: Callable[[asyncio.Task[Any]], None],
        variables: Variables | None = None,
    ) -> Callable[[], None]:
        """Start a coroutine; `on_done` is called on the loop's thread with its task.

        `variables` are its context variables; by default those of this thread. Return a function
        that cancels it; `on_done` is called even then.
        """
        loop = self._start()
        tasks: list[asyncio.Task[Any]] = []

        def start() -> None:
            tasks.append(loop.create_task(coroutine))
            tasks[0].add_done_callback(on_done)

        loop.call_soon_threadsafe(start, context=variables)

        def cancel() -> None:
            # After its first step: an asynchronous generator must reach its `yield`, if it can.
            loop.call_soon_threadsafe(lambda: loop.call_soon(tasks[0].cancel))

        return cancel

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._starting:  # the first coroutines may come from several worker threads at once
            if self._loop is None or self._process != os.getpid():
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                self._thread = CoroutineThread(
                    target=_run_until_stopped,
                    args=(self._loop,),
                    name="ding_lite-loop",
                    daemon=True,
                )
                self._thread.start()
            return self._loop

    def close(self, timeout: float | None = None) -> None:
        """Cancel all running coroutines, and wait for them and the thread to end."""
        thread = self._thread
        self.release()
        if thread is not None:
            thread.join(timeout)

    def release(self) -> None:
        """Cancel all running coroutines, and let the thread end after them."""
        loop, self._loop, self._thread = self._loop, None, None
        if loop is not None and self._process == os.getpid():
            ended = asyncio.run_coroutine_threadsafe(_end_all(), loop)
            ended.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, even if a coroutine raises SystemExit; close it."""
    is_stopped = False
    while not is_stopped:
        try:
            loop.run_forever()
            is_stopped = True
        except (SystemExit, KeyboardInterrupt):
            continue
    loop.close()


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()


class Workers:
    """Threads that run jobs, which must catch their own exceptions; started at their first use."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._process = 0
        self._waiting: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], None]) -> None:
        if not self._threads or self._process != os.getpid():
            with self._lock:
                if self._process != os.getpid():
                    self._threads, self._process = [], os.getpid()
                self._start(self._num_threads - len(self._threads))
        self._jobs.put(job)

    def begin_wait(self) -> None:
        """Note that the job of this thread waits for another job, which gets one more thread.

        So at least `num_threads` jobs run beside those that have waited.
        """
        thread = threading.current_thread()
        if thread in self._threads and thread not in self._waiting:
            with self._lock:
                self._waiting.add(thread)
                num_wanted = min(self._num_threads + len(self._waiting), MAX_WORKERS)
                self._start(num_wanted - len(self._threads))

    def _start(self, number: int) -> None:
        for _ in range(number):
            name = f"ding_lite-worker-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        thread = threading.current_thread()
        while (job := self._jobs.get()) is not None:
            job()
            del job  # else it stays in memory, with the ctx of its step, until the next one
            self._waiting.discard(thread)

    def close(self, timeout: float | None = None) -> None:
        for thread in self.release():
            thread.join(timeout)

    def release(self) -> list[threading.Thread]:
        """Let the threads end after the jobs that they have; return them."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        return threads


class MiddlewareOutcome(NamedTuple):
    """The result of one middleware of a concurrent step, up to its `yield`."""

    name: str
    opened: OpenGenerator | None
    error: BaseException | None


class Executor:
    """The worker threads and the loop of one task; `scope` ends the waits of a step that fails.

    The threads of one that is gone end by themselves: a composition may be made for one step.
    """

    def __init__(self, num_threads: int, scope: CancelScope) -> None:
        self.scope = scope
        self.loop = LoopThread()
        self.workers = Workers(num_threads)
        for release in (self.loop.release, self.workers.release):
            finalize(self, release).atexit = False

    def close(self, timeout: float | None = None) -> None:
        """End all threads; wait at most `timeout` seconds for the jobs of each."""
        self.workers.close(timeout)
        self.loop.close(timeout)

    def settle(self, out: Any) -> OpenGenerator | None:
        """Finish the way in of a middleware, given the result of calling it.

        A coroutine runs to its end, a generator to its `yield`. Return the generator to resume on
        the way out, if there is one. A function is refused: a factory was used without a call. So
        is a coroutine that runs another one through the task.
        """
        if isinstance(out, GeneratorType):
            return _to_yield(out)
        if not isinstance(out, CoroutineType | AsyncGeneratorType):
            refuse_result(out)
            return None
        if self.loop.is_here:
            if isinstance(out, CoroutineType):
                out.close()
            raise MiddlewareError(
                "A coroutine cannot drive another one through the task: it would wait for "
                "itself. `await` the other one instead."
            )
        return self.resumable(self.loop.run(_way_in(out)))

    def resumable(self, result: Any) -> OpenGenerator | None:
        """Wrap an asynchronous generator at its `yield` as an ordinary one; else return None."""
        if not isinstance(result, _AtYield):
            return None
        inner = result.inner

        def resume() -> OpenGenerator:
            try:
                yield
            except BaseException as error:  # noqa: BLE001 - it is the inner one's to handle
                ended = self.loop.run(_way_out(inner, error))
            else:
                ended = self.loop.run(_way_out(inner, None))
            if not ended:
                refuse_second_yield(name_of(inner))

        return _to_yield(named(resume(), name_of(inner)))


class StepBarrier:
    """Middleware that run at the same time, and the barrier that waits for all of them."""

    def __init__(self, executor: Executor, ctx: Context) -> None:
        self._executor = executor
        self._ctx = ctx
        self._done: SimpleQueue[tuple[int, Any, BaseException | None] | None] = SimpleQueue()
        self._cancels: list[Callable[[], None]] = []
        self._names: list[str] = []
        self.ended: dict[int, MiddlewareOutcome] = {}
        """The outcomes so far, by the order of the start."""
        self._is_failing = False
        self._is_over = False

    def start(self, fn: Middleware) -> None:
        """Start one middleware: a coroutine on the loop, anything else on a worker thread."""
        index = len(self._names)
        self._names.append(name_of(fn))
        variables = copy_context()  # the task's router, for one
        variables.run(self._executor.scope.enter)
        shape = shape_of(fn)
        if shape.is_async:
            report = partial(self._report, index)
            coroutine = _way_in(fn(self._ctx))
            self._cancels.append(self._executor.loop.submit(coroutine, report, variables))
        else:
            # A generator may handle the errors of the step on its way out, so it always begins.
            check = None if shape is MiddlewareShape.GENERATOR else self._executor.scope.check
            self._executor.workers.submit(partial(variables.run, self._call, index, fn, check))

    def wait(self, messages: Messages | None = None) -> list[MiddlewareOutcome]:
        """Wait until all have ended; if one fails, the waits of the others end with it.

        `messages` are delivered meanwhile. Return one outcome for each, in the order of their
        start, and one more for each exception of a listener.
        """
        ended, extra = self.ended, list[MiddlewareOutcome]()
        notify = partial(self._done.put, None)

        try:
            with messages.notifies(notify) if messages else nullcontext(), Wait(notify) as wait:
                while len(ended) < len(self._names):
                    if self._is_failing or wait.is_over:
                        self._cancel_all()
                    item = self._next()
                    if item is None:
                        error = self._deliver(messages)
                        extra += [MiddlewareOutcome("event", None, error)] if error else []
                        continue
                    index, value, error = item
                    if isinstance(value, _AtYield):
                        value = self._executor.resumable(value)
                    ended[index] = MiddlewareOutcome(self._names[index], value, error)
        finally:
            self._is_over = True
            self._executor.scope.restore(self)

        return [ended[index] for index in range(len(self._names))] + extra

    def _next(self) -> tuple[int, Any, BaseException | None] | None:
        """Wait for the next result; log the running middleware if a failed step waits for long."""
        if not self._is_failing:
            return self._done.get()
        try:
            return self._done.get(timeout=WARN_AFTER_S)
        except Empty:
            running = [f"`{n}`" for k, n in enumerate(self._names) if k not in self.ended]
            failed = [o for o in self.ended.values() if isinstance(o.error, Exception)]
            what = f": `{failed[0].name}` raised {failed[0].error!r}" if failed else ""
            logger.warning(
                "a step has failed%s; the error is raised once %s has ended, which still runs "
                "after %g s. A function of your own that waits asks `ctx.finish`",
                what,
                ", ".join(running),
                WARN_AFTER_S,
            )
            return self._done.get()

    def _deliver(self, messages: Messages | None) -> BaseException | None:
        try:
            if messages is not None:
                with self._executor.scope.entered():
                    messages.deliver()
        except (Exception, SystemExit) as error:
            if not isinstance(error, Exception) and is_of_a_signal(error):
                raise
            self._fail()
            return error
        return None

    def _fail(self) -> None:
        """End the waits of the step's other middleware; called on the thread that has failed."""
        if not self._is_over:
            self._is_failing = True
            self._executor.scope.cancel(self)

    def _cancel_all(self) -> None:
        for cancel in self._cancels:
            cancel()
        self._cancels.clear()

    def _call(self, index: int, fn: Middleware, check: Callable[[], None] | None) -> None:
        try:
            if check is not None:
                check()
            self._done.put((index, self._executor.settle(fn(self._ctx)), None))
        except BaseException as error:  # noqa: BLE001 - raised after the barrier
            self._fail()
            self._done.put((index, None, error))

    def _report(self, index: int, task: asyncio.Task[Any]) -> None:
        try:
            result = task.result()
            self._done.put((index, result if isinstance(result, _AtYield) else None, None))
        except BaseException as error:  # noqa: BLE001 - raised after the barrier
            self._fail()
            self._done.put((index, None, error))


def _to_yield(generator: OpenGenerator) -> OpenGenerator | None:
    for _ in generator:
        return generator
    return None


class _AtYield(NamedTuple):
    """An asynchronous generator that is suspended at its `yield` until the way out."""

    inner: AsyncGenerator[Any, Any]


def _way_in(out: Any) -> Coroutine[Any, Any, Any]:
    """Return the coroutine for the way in of an asynchronous middleware.

    A coroutine is returned unchanged: within another coroutine it would never be awaited if that
    one were cancelled before its first line.
    """
    return out if isinstance(out, CoroutineType) else _advance(out)


async def _advance(inner: AsyncGenerator[Any, Any]) -> _AtYield | None:
    async for _ in inner:
        return _AtYield(inner)
    return None


async def _way_out(inner: AsyncGenerator[Any, Any], error: BaseException | None) -> bool:
    """Resume an asynchronous generator; return whether it has ended, as it should."""
    try:
        await (anext(inner) if error is None else inner.athrow(error))
    except StopAsyncIteration:
        return True
    return False
