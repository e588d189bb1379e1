"""Threads of a task: an event loop on its own thread, and workers.

A forked process has copies of these objects, but not their threads, so they are started again
there.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context as Variables
from queue import SimpleQueue
from typing import Any

from ding_lite.cancellation import Wait
from ding_lite.runtime.messaging.base import CoroutineThread

MAX_WORKERS = 64
"""The most threads of one `Workers`, if its jobs wait for each other, and of a loop."""


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
        return get_or_cancel(done, self.submit(coroutine, done.put)).result()

    @property
    def ident(self) -> int | None:
        return None if self._thread is None else self._thread.ident

    @property
    def is_here(self) -> bool:
        """Whether this is the loop's own thread, where waiting for it would deadlock."""
        return threading.current_thread() is self._thread

    def submit(
        self,
        coroutine: Coroutine[Any, Any, Any],
        on_done: Callable[[asyncio.Task[Any]], None],
        variables: Variables | None = None,
        stop: Callable[[asyncio.Task[Any]], object] = asyncio.Task.cancel,
    ) -> Callable[[], None]:
        """Start a coroutine; `on_done` is called on the loop's thread with its task.

        `variables` are its context variables; by default those of this thread. Return a function
        that cancels it, by `stop` on the loop's thread; `on_done` is called even then.
        """
        loop = self._start()
        tasks: list[asyncio.Task[Any]] = []

        def start() -> None:
            tasks.append(loop.create_task(coroutine))
            tasks[0].add_done_callback(on_done)

        loop.call_soon_threadsafe(start, context=variables)

        def cancel() -> None:
            # After its first step: an asynchronous generator must reach its `yield`, if it can.
            loop.call_soon_threadsafe(lambda: loop.call_soon(stop, tasks[0]))

        return cancel

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._starting:  # the first coroutines may come from several worker threads at once
            if self._loop is None or self._process != os.getpid():
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                # For `asyncio.to_thread(task.wait_for, event)` of many coroutines at once: asyncio
                # has few threads by default, and a wait without a thread misses its event.
                self._loop.set_default_executor(ThreadPoolExecutor(MAX_WORKERS, "ding_lite-wait"))
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
    loop, others = asyncio.get_running_loop(), asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for task in others:
        if not task.cancelled() and (error := task.exception()) is not None:
            message = "a coroutine has raised when it was cancelled at the end of its task"
            loop.call_exception_handler({"message": message, "exception": error, "task": task})
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def get_or_cancel(answers: SimpleQueue[Any], cancel: Callable[[], None]) -> Any:
    """Wait for an answer; call `cancel` if a failing step ends the wait, or an exception does."""
    try:
        with Wait(cancel) as wait:
            if wait.is_over:
                cancel()
            return answers.get()
    except BaseException:  # a second Ctrl-C: the answer is not needed any more
        cancel()
        raise


class Workers:
    """Threads that run jobs, which must catch their own exceptions; started at their first use.

    So many jobs run at a time as there are threads. A job that is suspended for long, or waits for
    another job, may let one more thread run jobs meanwhile.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._threads: list[threading.Thread] = []
        self._pool = _Pool()
        self._process = 0
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], None]) -> None:
        if not self._threads or self._process != os.getpid():
            with self._lock:
                if self._process != os.getpid():
                    self._threads, self._pool, self._process = [], _Pool(), os.getpid()
                self._start(self._num_threads - len(self._threads))
        self._pool.jobs.put(job)

    def begin_wait(self) -> None:
        """Note that the job of this thread waits for another job, which gets one more thread.

        So at least `num_threads` jobs run beside those that have waited.
        """
        thread, waiting = threading.current_thread(), self._pool.waiting
        if thread in self._threads and thread not in waiting:
            with self._lock:
                waiting.add(thread)
                aside = len(self._pool.suspended) + len(self._pool.spare)
                num_wanted = min(self._num_threads + len(waiting), MAX_WORKERS)
                self._start(num_wanted - (len(self._threads) - aside))

    def begin_suspension(self, abandon: Callable[[], None]) -> None:
        """Let another thread take the place of this one until its job ends, which is resumed later.

        `abandon` is called by `release` if it is not: the job must end then.
        """
        pool, thread = self._pool, threading.current_thread()
        if thread not in self._threads:  # `release` was called meanwhile
            abandon()
            return
        pool.suspended[thread] = abandon
        if pool.is_ending:
            abandon()
        try:
            pool.spare.pop().put(True)
        except IndexError:
            with self._lock:
                self._start(1)

    def _start(self, number: int) -> None:
        for _ in range(number):
            name = f"ding_lite-worker-{len(self._threads)}"
            thread = threading.Thread(target=self._pool.work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def idents(self) -> list[int | None]:
        return [thread.ident for thread in self._threads]

    def close(self, timeout: float | None = None) -> None:
        for thread in self.release():
            thread.join(timeout)

    def release(self) -> list[threading.Thread]:
        """Let the threads end after the jobs that they have; return them."""
        threads, self._threads = self._threads, []
        pool, self._pool = self._pool, _Pool()
        pool.end(len(threads))
        return threads


class _Pool:
    """The jobs of threads that are started together and end together."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.waiting: set[threading.Thread] = set()
        self.suspended: dict[threading.Thread, Callable[[], None]] = {}
        self.spare: list[SimpleQueue[bool]] = []
        """For each thread that another one has replaced, the queue on which it waits for a turn."""
        self.is_ending = False

    def work(self) -> None:
        thread, turn = threading.current_thread(), SimpleQueue[bool]()
        while (job := self.jobs.get()) is not None:
            job()
            del job  # else it stays in memory, with the ctx of its step, until the next one
            self.waiting.discard(thread)
            if self.suspended.pop(thread, None) is not None:
                self.spare.append(turn)
                if self.is_ending or not turn.get():
                    return

    def end(self, num_threads: int) -> None:
        self.is_ending = True
        for _ in range(num_threads):
            self.jobs.put(None)
        for turn in list(self.spare):
            turn.put(False)
        for abandon in list(self.suspended.values()):
            abandon()
