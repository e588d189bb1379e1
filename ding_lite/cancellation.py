"""Cancel scopes: end the blocked calls of a concurrent step that has failed.

A middleware of a concurrent step may wait for a message that is never sent, because another
middleware of the same step has raised. All threads and coroutines of the step run in one scope.
When the scope is cancelled, every wait on a `Deadline` in it ends at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ding_lite.errors import StepCancelled

Wake = Callable[[], None]
"""Wakes a blocked thread; called on any thread."""


class CancelScope:
    """Ends the blocked calls of a task when one of its steps fails, or those of a composition.

    Args:
        parent: The scope of the step that a composition is part of. If that is cancelled, so is
            this one, but not the other way round: the composition may handle its own errors.
    """

    def __init__(self, parent: CancelScope | None = None) -> None:
        self.has_failed = False
        """Whether it was cancelled itself; an attribute, as programs ask `ctx.finish` often."""
        self._parent = parent
        self._causes: set[object] = set()
        self._waits: set[Wait] = set()
        self._listeners: list[Wake] = [] if parent is None else parent._listeners
        self._lock = threading.Lock()

    @property
    def is_cancelled(self) -> bool:
        """Whether the step has failed, and runs on until all of its middleware have ended."""
        parent = self._parent
        return self.has_failed or (parent is not None and parent.is_cancelled)

    def listen(self, fn: Wake) -> None:
        """Call `fn()` each time the scope is cancelled, on the thread that cancels it."""
        self._listeners.append(fn)

    def cancel(self, cause: object) -> None:
        """End all waits, also those that begin before `restore` is called with the same cause."""
        with self._lock:
            if cause in self._causes:
                return
            self._causes.add(cause)
            self.has_failed = True
            waits = list(self._waits)
            for wait in waits:
                wait.is_over = True
        for wake in [wait.wake for wait in waits] + self._listeners:
            wake()

    def restore(self, cause: object) -> None:
        """Allow new waits; those that `cancel` has ended stay ended."""
        with self._lock:
            self._causes.discard(cause)
            self.has_failed = bool(self._causes)

    def reset(self) -> None:
        """Forget all causes, when the task is closed or a new run begins."""
        with self._lock:
            self._causes.clear()
            self.has_failed = False

    def check(self) -> None:
        """Raise StepCancelled if the scope is cancelled."""
        if self.is_cancelled:
            raise cancelled()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this the scope of the thread for the length of a `with` block."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def enter(self) -> None:
        """Make this the scope of the context from now on."""
        _CURRENT.set(self)

    def _add(self, wait: Wait) -> None:
        with self._lock:
            self._waits.add(wait)
            if self.has_failed:
                wait.is_over = True
        if self._parent is not None:
            self._parent._add(wait)

    def _remove(self, wait: Wait) -> None:
        with self._lock:
            self._waits.discard(wait)
        if self._parent is not None:
            self._parent._remove(wait)


class Wait:
    """One blocked call, for the length of a `with` block; no scope means no cancellation.

    `wake` makes the blocked thread check `is_over` again.
    """

    __slots__ = ("_scope", "is_over", "wake")

    def __init__(self, wake: Wake) -> None:
        self.wake = wake
        self.is_over = False
        """Whether the scope was cancelled, before or after the call began."""
        self._scope = _CURRENT.get()

    def __enter__(self) -> Wait:
        if self._scope is not None:
            self._scope._add(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._scope is not None:
            self._scope._remove(self)


_CURRENT: ContextVar[CancelScope | None] = ContextVar("ding_lite_cancel_scope", default=None)


def cancelled() -> StepCancelled:
    """Return the error of a call in a step that has failed."""
    return StepCancelled(
        "Another middleware of this step has raised, so this call was given up. `run` raises that "
        "error once all middleware of the step have ended."
    )


current_scope = _CURRENT.get
"""Returns the scope that this thread runs in; None outside of concurrent steps."""


def is_cancelled() -> bool:
    scope = current_scope()
    return scope is not None and scope.is_cancelled
