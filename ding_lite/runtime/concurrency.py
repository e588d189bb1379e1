"""Threads and the event loop of a task, and the barrier at which a concurrent step ends.

What is ugly here and why: a step may mix plain functions, which block, with coroutines, which need
a loop, and the task may itself be called from a running loop (a notebook). So coroutines always run
on one loop on its own thread, the functions of a concurrent step run on worker threads, each
generator on a thread of its own until its end, and the task's thread waits at one barrier for all.
Nothing outlives the barrier but generators at their `yield`: on an error the coroutines are
cancelled and awaited. Functions cannot be cancelled, but their scope is: that ends their waits,
also those of nested steps, and the barrier waits for the functions to return.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from contextvars import Context as Variables, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet, finalize

from ding_lite.cancellation import CancelScope, Wait
from ding_lite.errors import MiddlewareError
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.messages import Messages
from ding_lite.runtime.middleware import (
    Middleware,
    MiddlewareShape,
    awaiting,
    is_awaitable,
    name_of,
    refuse_result,
    shape_of,
)
from ding_lite.runtime.suspended import (
    OnLoop,
    OnThread,
    OpenGenerator,
    Report,
    Suspended,
    deliver_to_end,
)
from ding_lite.runtime.threads import LoopThread, Workers, get_or_cancel

logger = logging.getLogger(__name__)

WARN_AFTER_S = 10.0
"""Seconds that a failed step waits before it logs which of its functions still run."""


class MiddlewareOutcome(NamedTuple):
    """The result of one middleware of a concurrent step, up to its `yield`."""

    name: str
    opened: OpenGenerator | None
    error: BaseException | None


class Executor:
    """The threads and the loop of one task; `scope` ends the waits of a step that fails.

    The threads of one that is gone end by themselves: a composition may be made for one step.
    """

    def __init__(
        self, num_threads: int, scope: CancelScope, loop: LoopThread | None = None
    ) -> None:
        self.scope = scope
        self.loop = LoopThread() if loop is None else loop
        self.messages: Messages | None = None
        """The events that are delivered while the task's thread waits for a second half."""
        self.workers = Workers(num_threads)
        self._of_compositions: WeakSet[Executor] = WeakSet()
        finalize(self, self.workers.release).atexit = False
        if loop is None:
            finalize(self, self.loop.release).atexit = False

    def for_composition(self, num_threads: int) -> Executor:
        """Make an executor with the same loop and threads of its own, which ends with this one."""
        executor = Executor(num_threads, self.scope, self.loop)
        executor.messages = self.messages
        self._of_compositions.add(executor)
        return executor

    def close(self, timeout: float | None = None) -> None:
        """End all threads; wait at most `timeout` seconds for the jobs of each."""
        for executor in (self, *self._of_compositions):
            executor.workers.close(timeout)
        self.loop.close(timeout)

    def has_thread(self, ident: int) -> bool:
        """Return whether middleware of a step may run on the thread with this identifier."""
        executors = self, *self._of_compositions
        return ident == self.loop.ident or any(ident in e.workers.idents for e in executors)

    def settle(self, out: Any) -> OpenGenerator | None:
        """Finish the way in of a middleware, given the result of calling it.

        A coroutine runs to its end, a generator to its `yield`. Return the generator to resume on
        the way out, if there is one. A function is refused: a factory was used without a call. So
        is a coroutine that runs another one through the task.
        """
        if isinstance(out, GeneratorType):
            return _to_yield(out)
        is_async_generator = isinstance(out, AsyncGeneratorType)
        if not (is_async_generator or is_awaitable(out)):
            refuse_result(out)
            return None
        try:
            self.refuse_on_loop()
        except MiddlewareError:
            if isinstance(out, CoroutineType):
                out.close()
            raise
        if not is_async_generator:
            self.loop.run(_as_coroutine(out))
            return None
        reached: SimpleQueue[tuple[Suspended | None, BaseException | None]] = SimpleQueue()
        generator = OnLoop(out, lambda *answer: reached.put(answer))
        suspended, error = get_or_cancel(reached, generator.start(self.loop))
        if error is not None:
            raise error
        return None if suspended is None else suspended.stand_in(self.messages)

    def refuse_on_loop(self) -> None:
        if self.loop.is_here:
            raise MiddlewareError(
                "A coroutine cannot drive another one through the task: it would wait for "
                "itself. `await` the other one instead."
            )


_Arrival: TypeAlias = tuple[int, Suspended | None, BaseException | None]


class StepBarrier:
    """Middleware that run at the same time, and the barrier that waits for all of them."""

    def __init__(self, executor: Executor, ctx: Context, scope: CancelScope | None = None) -> None:
        self._executor = executor
        self._scope = executor.scope if scope is None else scope
        self._ctx = ctx
        self._done: SimpleQueue[_Arrival | None] = SimpleQueue()
        self._cancels: list[Callable[[], None]] = []
        self._names: list[str] = []
        self.ended: dict[int, MiddlewareOutcome] = {}
        """The outcomes so far, by the order of the start."""
        self._is_failing = False
        self._over = threading.Event()

    def start(self, fn: Middleware, name: str | None = None) -> None:
        """Start one middleware: a coroutine on the loop, anything else on a worker thread."""
        index = len(self._names)
        self._names.append(name or name_of(fn))
        variables = copy_context()  # the task's router, for one
        variables.run(self._scope.enter)
        shape = shape_of(fn)
        if shape.is_async:
            self._submit(index, fn(self._ctx), variables)
        else:
            # A generator may handle the errors of the step on its way out, so it always begins.
            check = None if shape is MiddlewareShape.GENERATOR else self._scope.check
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
                        with self._scope.entered():
                            errors = deliver_to_end(messages)
                        if errors:
                            self._fail()
                        extra += [MiddlewareOutcome("event", None, error) for error in errors]
                        continue
                    index, suspended, error = item
                    opened = (
                        None if suspended is None else suspended.stand_in(self._executor.messages)
                    )
                    ended[index] = MiddlewareOutcome(self._names[index], opened, error)
        finally:
            self._over.set()
            self._scope.restore(self)
            self._cancels.clear()  # else a cycle keeps the ctx of the step in memory

        return [ended[index] for index in range(len(self._names))] + extra

    def _next(self) -> _Arrival | None:
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

    def _fail(self) -> None:
        """End the waits of the step's other middleware; called on the thread that has failed."""
        if not self._over.is_set():
            self._is_failing = True
            self._scope.cancel(self)
            if self._over.is_set():  # meanwhile, as a timeout around a `yield` may end at any time
                self._scope.restore(self)

    def _fail_early(self) -> None:
        self._fail()
        self._done.put(None)  # so that `wait` cancels the coroutines

    def _cancel_all(self) -> None:
        while self._cancels:
            self._cancels.pop()()

    def _call(self, index: int, fn: Middleware, check: Callable[[], None] | None) -> None:
        try:
            if check is not None:
                check()
            out = fn(self._ctx)
            if isinstance(out, GeneratorType):
                OnThread(out, partial(self._report, index)).run(self._executor.workers)
            elif isinstance(out, AsyncGeneratorType) or is_awaitable(out):
                self._submit(index, out, copy_context())
                if self._is_failing:
                    self._done.put(None)  # so that `wait` cancels it
            else:
                refuse_result(out)
                self._report(index, None, None)
        except BaseException as error:  # noqa: BLE001 - raised after the barrier
            self._report(index, None, error)

    def _submit(self, index: int, out: Any, variables: Variables) -> None:
        """Start a coroutine, or an asynchronous generator, on the loop."""
        loop, report = self._executor.loop, partial(self._report, index)
        if isinstance(out, AsyncGeneratorType):
            generator = OnLoop(out, report)
            generator.on_early_end = self._fail_early
            cancel = generator.start(loop, variables)
        else:
            cancel = loop.submit(_as_coroutine(out), partial(_report_task, report), variables)
        self._cancels.append(cancel)

    def _report(self, index: int, suspended: Suspended | None, error: BaseException | None) -> None:
        if error is not None:
            self._fail()
        self._done.put((index, suspended, error))


def _to_yield(generator: OpenGenerator) -> OpenGenerator | None:
    for _ in generator:
        return generator
    return None


def _as_coroutine(out: Any) -> Coroutine[Any, Any, Any]:
    """Return a coroutine unchanged, as within another one it might never be awaited."""
    return out if isinstance(out, CoroutineType) else awaiting(out)


def _report_task(report: Report, task: asyncio.Task[Any]) -> None:
    try:
        task.result()
    except BaseException as error:  # noqa: BLE001 - raised after the barrier
        report(None, error)
    else:
        report(None, None)
