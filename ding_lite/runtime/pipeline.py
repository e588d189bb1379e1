"""The engine of a task: passes a ctx through a chain of middleware, step after step.

A step is an onion. On the way in each middleware runs, a generator up to its `yield`; on the
way out the open generators are resumed in reverse order, and then once more those that have yielded
LAST. An exception also takes the way out: each
open generator may handle it around its `yield`, and after that the way out continues as usual.

`Pipeline.run` is the hot loop. It makes one plain call per middleware, checks the queue of events
once, and computes nothing that was known before the loop.
"""

from __future__ import annotations

import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Sequence, Sized
from operator import length_hint
from types import GeneratorType
from typing import Any

from ding_lite.cancellation import CancelScope, current_scope
from ding_lite.errors import StepCancelled
from ding_lite.runtime.concurrency import Executor, StepBarrier
from ding_lite.runtime.context import Context, Latch, Lineage, latch_of
from ding_lite.runtime.messaging.messages import Messages
from ding_lite.runtime.middleware import (
    LAST,
    Middleware,
    check_middleware,
    composed_of,
    name_of,
    named,
    naming_generators,
    note_once,
    refuse_second_yield,
    refuse_silent_exit,
)
from ding_lite.runtime.suspended import OpenGenerator


class Onion:
    """The open generators of a step, which are suspended until the way out.

    Events are delivered after each generator that has been resumed. `note` gets an exception and
    the name of the middleware that raised it (None if unknown), and returns the error to raise,
    with notes for the user.
    """

    def __init__(
        self,
        messages: Messages | None = None,
        note: Callable[[BaseException, str | None], BaseException] = lambda error, name: error,
    ) -> None:
        self.opened: list[OpenGenerator] = []
        self._pending: Sized = () if messages is None else messages.pending
        self._deliver: Callable[[], object] = list if messages is None else messages.deliver
        self.note = note

    def push(self, generator: OpenGenerator | None) -> None:
        if generator is not None:
            self.opened.append(generator)

    def way_out(self) -> Iterator[Any]:
        """Yield if generators are open, and resume them afterwards, for a composed middleware."""
        mark = None
        while self.opened:
            try:
                yield mark
            except BaseException as error:  # noqa: BLE001 - raised again unless handled
                self.unwind(error)
            else:
                self.leave(to_end=False, is_last=mark is LAST)
            mark = LAST

    def leave(self, to_end: bool = True, is_last: bool = False) -> None:
        """Resume all generators; `to_end`: and again those that have yielded LAST, if any.

        `is_last`: all of them have yielded it.
        """
        opened, pending = self.opened, self._pending
        left = reversed(opened)  # faster than a `pop` for each
        last = None
        try:
            for generator in left:
                for out in generator:
                    if is_last or out is not LAST:
                        refuse_second_yield(name_of(generator))
                    last = [generator, *(last or ())]
                    break
                if pending:
                    self._deliver()
            opened.clear()
        except BaseException as error:  # noqa: BLE001 - raised again unless handled
            del opened[length_hint(left) :]
            opened[:0] = last or ()  # they are outside of all others
            self.unwind(error, name_of(generator))
            return
        if last is not None:
            opened += last
            if to_end:
                self.leave(is_last=True)

    def unwind(self, error: BaseException, name: str | None = None) -> None:
        """Carry an exception outwards through the generators; raise it unless one handles it."""
        current: BaseException | None = self.note(error, name)
        last: list[OpenGenerator] = []
        while self.opened:
            generator = self.opened.pop()
            try:
                out = next(generator) if current is None else generator.throw(current)
                if out is not LAST or generator in last:
                    refuse_second_yield(name_of(generator))
                current = None
                last.append(generator)
                self.opened.insert(0, generator)
            except StopIteration:
                current = None
            except BaseException as raised:  # noqa: BLE001 - raised at the end of the way out
                current = self.note(raised, name_of(generator))
        if current is not None:
            raise current


class Pipeline:
    """A chain of middleware and the context that passes through it.

    Events are delivered between two middleware; the ctx is published after a step.
    """

    def __init__(self, ctx: Context, executor: Executor, messages: Messages) -> None:
        self.ctx = ctx
        self.is_step_made = False
        """Whether the step of `ctx` has been made; `run` then begins with the next one."""
        self._lineage = Lineage(ctx)
        self.chain: tuple[Middleware, ...] = ()
        self._names: tuple[str, ...] = ()
        self._executor = executor
        self._messages = messages
        self._onion = Onion(messages, self._note)
        self._barrier: StepBarrier | None = None

    def load(self, chain: Sequence[Middleware], names: Sequence[str]) -> None:
        """Set the middleware that `run` calls with each ctx."""
        self.chain, self._names = tuple(map(naming_generators, chain)), tuple(names)

    # -- the loop ------------------------------------------------------------------------

    def run(  # noqa: C901 - the hot loop: a call less is a tenth of a step
        self, num_steps: int | None, *, concurrent: bool
    ) -> None:
        """Run step after step until the job's latch is set.

        The way out of the last step sees `ctx.finish` from its beginning, so that middleware can
        close there. If another thread or node sets the latch during a way out, there is therefore
        one more step.
        """
        if self.is_step_made:
            self.renew()
        self.is_step_made = True
        ctx, latch = self.ctx, latch_of(self.ctx)
        opened, leave = self._onion.opened, self._onion.leave
        messages, settle = self._messages, self._executor.settle
        router, pending, deliver = messages.router, messages.pending, messages.deliver
        next_of, kept, generator = self._lineage.cls, self._lineage.kept, GeneratorType
        counted = {"total_step": ctx["total_step"]}
        left = -1 if num_steps is None else num_steps
        sequence = () if concurrent else self.chain
        fn: Middleware | None = None

        while True:
            try:
                for fn in sequence:
                    out = fn(ctx)
                    if out is not None:
                        if type(out) is generator:
                            for _ in out:
                                opened.append(out)
                                break
                        elif (out := settle(out)) is not None:
                            opened.append(out)
                    if pending:
                        deliver()
            except BaseException as error:  # noqa: BLE001 - raised again unless handled
                self._onion.unwind(error, self._name_of(fn))

            if concurrent:
                self._enter_all(ctx)
            left -= 1
            if left == 0:
                latch.end_run()
            is_last = latch.is_set
            if opened:
                leave()
            if pending:
                deliver()
            if router.has_audience:
                messages.publish(ctx)
            if is_last or (latch.is_set and self._has_set(latch)):
                return

            counted["total_step"] += 1  # from here on as `Lineage.next_of`, without its call
            items = counted
            if kept:
                items = counted.copy()
                for key in kept:
                    if key in ctx:
                        items[key] = ctx[key]
            self.ctx = ctx = next_of(items)

    def _has_set(self, latch: Latch) -> bool:
        """Return whether a middleware has set the latch, and no thread outside of the step."""
        here = latch.set_by == threading.get_ident()
        return here or self._executor.has_thread(latch.set_by)

    def _enter_all(self, ctx: Context) -> None:
        barrier = StepBarrier(self._executor, ctx)
        for fn, name in zip(self.chain, self._names, strict=True):
            barrier.start(fn, name)
        pass_barrier(barrier, self._onion, self._messages)

    # -- one by one ----------------------------------------------------------------------

    def enter(self, fn: Middleware, ctx: Context) -> None:
        """Run one middleware up to its `yield`; `leave` runs the rest."""
        try:
            opened = self._executor.settle(fn(ctx))
        except BaseException as error:
            raised = refuse_silent_exit(error, f"Middleware `{name_of(fn)}`")
            note_once(raised, f"in middleware `{name_of(fn)}`, {self._messages.when()}")
            if raised is error:
                raise
            raise raised from error
        self._onion.push(opened)
        self._messages.deliver()

    def start(self, fn: Middleware, ctx: Context) -> None:
        if self._barrier is None:
            self._barrier = StepBarrier(self._executor, ctx)
        self._barrier.start(fn)

    def sync(self) -> None:
        """Wait for every started middleware, and deliver the events that came meanwhile."""
        self.is_step_made = True
        if self._barrier is not None:
            barrier, self._barrier = self._barrier, None
            pass_barrier(barrier, self._onion, self._messages)
        self._messages.deliver()

    def leave(self) -> None:
        self._onion.leave()

    def renew(self) -> None:
        self.ctx, self.is_step_made = self._lineage.next_of(self.ctx), False

    def abandon(self, error: BaseException) -> None:
        """Throw an exception from outside into all open generators; the caller raises it."""
        try:
            self._onion.unwind(error)
        except BaseException as last:
            if last is not error:
                raise

    # -- errors --------------------------------------------------------------------------

    def _name_of(self, fn: Middleware | None) -> str | None:
        names = [name for own, name in zip(self.chain, self._names, strict=True) if own is fn]
        return " or ".join(names) or None

    def _note(self, error: BaseException, name: str | None) -> BaseException:
        if name is None:
            note_once(error, self._messages.when())
            return error
        which = f"`{name}`"
        error = refuse_silent_exit(error, f"Middleware {which}")
        if self._names.count(name) == 1:
            position = self._names.index(name) + 1
            which += f" ({_ordinal(position)} of {len(self._names)})"
        note_once(error, f"in middleware {which}, {self._messages.when()}")
        return error


def _ordinal(number: int) -> str:
    teens = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def pass_barrier(barrier: StepBarrier, onion: Onion, messages: Messages | None = None) -> None:
    """Wait for a concurrent step, push its open generators, and raise its errors, if any."""
    errors = []
    try:
        outcomes = barrier.wait(messages)
    except BaseException as interrupt:  # noqa: BLE001 - raised again by `unwind`
        for outcome in barrier.ended.values():
            onion.push(outcome.opened)
        onion.unwind(interrupt)
        return
    for outcome in outcomes:
        onion.push(outcome.opened)
        if outcome.error is not None:
            error = refuse_silent_exit(outcome.error, f"Middleware `{outcome.name}`")
            errors.append(onion.note(error, outcome.name))

    if len(errors) > 1:  # cancellations only follow from the other errors
        cancelled = CancelledError, StepCancelled
        errors = [e for e in errors if not isinstance(e, cancelled)] or errors[:1]
    if len(errors) > 1:
        onion.unwind(BaseExceptionGroup(f"{len(errors)} middleware failed in one step", errors))
    elif errors:
        onion.unwind(errors[0])


def serial(middleware: Sequence[Middleware], executor: Executor) -> Middleware:
    """Compose middleware into one that runs them in order, with its own way out."""

    def chain(ctx: Context) -> Iterator[None]:
        onion = Onion()
        try:
            for fn in middleware:
                onion.push(executor.settle(fn(ctx)))
                if (scope := current_scope()) is not None:
                    scope.check()
        except BaseException as error:  # noqa: BLE001 - raised again unless handled
            onion.unwind(error)
        yield from onion.way_out()

    return _composed(chain, "serial", middleware)


def parallel(middleware: Sequence[Middleware], executor: Executor) -> Middleware:
    """Compose middleware into one that runs them at the same time and waits for all.

    It has its own threads, as all shared ones could be waiting for this middleware.
    """

    def gather(ctx: Context) -> Iterator[None]:
        executor.refuse_on_loop()
        onion = Onion()
        barrier = StepBarrier(executor, ctx, CancelScope(current_scope() or executor.scope))
        for fn in middleware:
            barrier.start(fn)
        pass_barrier(barrier, onion)
        yield from onion.way_out()

    return _composed(gather, "parallel", middleware)


def _composed(fn: Middleware, kind: str, middleware: Sequence[Middleware]) -> Middleware:
    for part in middleware:
        check_middleware(part)
    named(fn, f"{kind}({', '.join(name_of(part) for part in middleware)})")
    composed_of(fn, middleware)
    return fn
