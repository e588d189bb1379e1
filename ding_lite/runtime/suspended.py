"""Generators that run beside the task's thread, each on one thread or as one asyncio task.

A middleware that is a generator may hold at its `yield` what belongs to a thread (a lock, a
connection to a database, `torch.no_grad`) or to an asyncio task (a timeout, a task group). So both
its halves run in one place, where it waits between them. A stand-in takes its place in the onion.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import nullcontext, suppress
from contextvars import Context as Variables
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from ding_lite.cancellation import Wait
from ding_lite.interruption import is_of_a_signal
from ding_lite.runtime.messaging.messages import Messages
from ding_lite.runtime.middleware import name_of, named
from ding_lite.runtime.threads import LoopThread, Workers

OpenGenerator: TypeAlias = Generator[Any, Any, Any]
"""A middleware that is suspended at its `yield` until the way out."""
Report: TypeAlias = Callable[["Suspended | None", BaseException | None], None]
"""Gets a generator that has reached its `yield`, None if it has ended, or its exception."""

_ENDED = object()
_HASTY_S = 1.0
"""Seconds that the second half of a generator may take to end after a second Ctrl-C."""


class Suspended(ABC):
    """A generator that waits at its `yield` elsewhere; `report` is called when it gets there."""

    def __init__(self, name: str, report: Report) -> None:
        self._name = name
        self._report: Report | None = report
        self._answers: SimpleQueue[tuple[Any, BaseException | None] | None] = SimpleQueue()

    def _answer(self, out: Any, error: BaseException | None = None) -> None:
        report, self._report = self._report, None
        if report is None:
            self._answers.put((out, error))
        else:
            report(None if out is _ENDED else self, error)

    @abstractmethod
    def _resume(self, error: BaseException | None) -> None:
        """Let the generator go on after its `yield`, or raise an exception there."""

    def _cancel(self) -> None:  # noqa: B027 - a function on a thread cannot be ended
        """End the second half, if that is possible."""

    def stand_in(self, messages: Messages | None = None) -> OpenGenerator:
        """Return a generator that resumes this one and waits for it; events are delivered then."""
        generator: OpenGenerator = named(self._stand_in(messages), self._name)
        next(generator)
        return generator

    def _stand_in(self, messages: Messages | None) -> OpenGenerator:
        out = None
        while out is not _ENDED:
            try:
                yield out
            except GeneratorExit as error:  # it is abandoned, so that its end is not waited for
                self._resume(error)
                raise
            except BaseException as error:  # noqa: BLE001 - it is the inner one's to handle
                self._resume(error)
            else:
                self._resume(None)
            out = self._get(messages)

    def _get(self, messages: Messages | None) -> Any:
        """Wait for the next `yield`, or the end, of the generator; raise its exception."""
        if messages is None or messages.owner != threading.get_ident():
            messages = None  # only the task's own thread delivers
        errors: list[BaseException] = []
        notify = partial(self._answers.put, None)
        notified = nullcontext() if messages is None else messages.notifies(notify)
        try:
            with notified, Wait(self._cancel) as wait:
                if wait.is_over:
                    self._cancel()
                while (answer := self._answers.get()) is None:
                    errors += deliver_to_end(messages)
        except BaseException:  # a second Ctrl-C
            self._cancel()
            with suppress(Empty):  # the way out goes on in order, if this part ends soon
                while self._answers.get(timeout=_HASTY_S) is None:
                    pass
            raise
        out, raised = answer
        errors += [raised] if raised is not None else []
        if len(errors) > 1:
            raise BaseExceptionGroup(f"`{self._name}` or listeners have failed", errors)
        if errors:
            raise errors[0]
        return out


def deliver_to_end(messages: Messages | None) -> list[BaseException]:
    """Deliver events; return the exception of a listener, if one has raised."""
    try:
        if messages is not None:
            messages.deliver()
    except (Exception, SystemExit) as error:
        if not isinstance(error, Exception) and is_of_a_signal(error):
            raise
        return [error]
    return []


class OnThread(Suspended):
    """A generator that runs on one thread of workers."""

    def __init__(self, generator: OpenGenerator, report: Report) -> None:
        super().__init__(name_of(generator), report)
        self._generator = generator
        self._gate: SimpleQueue[BaseException | None] = SimpleQueue()

    def run(self, workers: Workers) -> None:
        """Run it on this thread, which another one replaces from its `yield` on."""
        generator, raised = self._generator, None
        try:
            out = next(generator)
            workers.begin_suspension(self._abandon)
            while True:
                self._answer(out)
                error = self._gate.get()
                out = next(generator) if error is None else generator.throw(error)
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by the stand-in
            raised = error
        self._answer(_ENDED, raised)

    def _abandon(self) -> None:
        self._resume(GeneratorExit())

    def _resume(self, error: BaseException | None) -> None:
        self._gate.put(error)


class OnLoop(Suspended):
    """An asynchronous generator that runs as one asyncio task."""

    def __init__(self, inner: AsyncGenerator[Any, Any], report: Report) -> None:
        super().__init__(name_of(inner), report)
        self._inner = inner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._gate: asyncio.Future[BaseException | None] | None = None
        self._has_ended = False
        self._is_resumed = False
        self.on_early_end: Callable[[], None] = lambda: None
        """Called on the loop's thread if an exception ends it while it waits at its `yield`."""

    def start(self, loop: LoopThread, variables: Variables | None = None) -> Callable[[], None]:
        """Start it on a loop; return a function that cancels its first half."""
        return loop.submit(self._drive(), self._on_done, variables, stop=self._stop)

    async def _drive(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        error: BaseException | None = None
        while True:
            try:
                out = await (anext(self._inner) if error is None else self._inner.athrow(error))
            except StopAsyncIteration:
                return self._end()
            except BaseException as raised:  # noqa: BLE001 - raised again by the stand-in
                return self._end(raised)
            self._gate = self._loop.create_future()
            self._answer(out)
            try:
                error = await self._gate
            except asyncio.CancelledError as cancelled:  # of a timeout or group around the `yield`
                error = cancelled
            self._gate = None

    def _end(self, error: BaseException | None = None) -> None:
        is_early = self._report is None and not self._is_resumed
        self._has_ended = True
        on_early_end, self.on_early_end = self.on_early_end, lambda: None  # it holds the ctx
        self._answer(_ENDED, error)
        if is_early:
            on_early_end()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        if not self._has_ended:  # cancelled before its first line
            self._end(asyncio.CancelledError())

    def _stop(self, task: asyncio.Task[Any]) -> None:
        if self._gate is None:
            task.cancel()

    def _resume(self, error: BaseException | None) -> None:
        self._is_resumed = True
        self._on_loop(self._open_gate, error)

    def _open_gate(self, error: BaseException | None) -> None:
        if self._gate is not None and not self._gate.done():
            self._gate.set_result(error)

    def _cancel(self) -> None:
        if self._task is not None:
            # After its first step, in which the error of the way out is raised at the `yield`.
            self._on_loop(self._task.get_loop().call_soon, self._task.cancel)

    def _on_loop(self, fn: Callable[..., object], *args: Any) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, which has ended the generator
                self._loop.call_soon_threadsafe(fn, *args)
