"""Events of a task: posted from any thread, delivered to listeners between two middleware.

An event waits in a queue until the task delivers it, at the latest between two middleware. So a
listener never runs beside a middleware of a task that is not async, and its exception ends the
run as a middleware's does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ding_lite.clock import SYSTEM_CLOCK, Clock, Deadline
from ding_lite.errors import ConfigError, DeadlineExceeded, did_you_mean
from ding_lite.runtime.messaging.base import Router
from ding_lite.runtime.middleware import name_of, note_once, refuse_silent_exit
from ding_lite.runtime.trace.messages import draw_listener, draw_wait

Listener = Callable[..., object]


class Emission(NamedTuple):
    """The arguments of an event."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Events:
    """The listeners of one task, and the events that wait for them.

    Args:
        clock: What the waits are measured by.
        router: Where the events of other nodes come from, if there are any.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, router: Router | None = None) -> None:
        self.pending: deque[tuple[str, Emission]] = deque()
        """Events not yet delivered; the pipeline looks at it between two middleware."""
        self.owner = threading.get_ident()
        """The thread on which the task runs, the only one that delivers."""
        self._clock = clock
        self._router = router
        self._listeners: dict[str, list[tuple[Listener, bool]]] = {}
        self._waiting: dict[str, list[list[tuple[Emission, str]]]] = {}
        self._notify: Callable[[], None] = lambda: None
        self._posted = threading.Condition()
        self._delivering = False

    def on(self, event: str, fn: Listener, *, once: bool = False) -> None:
        """Call `fn` with the arguments of each event of this name; listeners keep their order.

        Raises:
            ConfigError: The name is no string, or `fn` cannot be called.
        """
        if not isinstance(event, str) or not event:
            raise ConfigError(f"The name of an event is a non-empty string, not {event!r}.")
        if not callable(fn):
            raise ConfigError(
                f"A listener of `{event}` is a function, not {fn!r}. "
                f"Give the function itself, without calling it."
            )
        self._listeners.setdefault(event, []).append((fn, once))

    def off(self, event: str, fn: Listener | None = None) -> None:
        """Remove one listener of an event, or all of them.

        Raises:
            ConfigError: There is no such listener.
        """
        listeners = self._listeners.get(event, [])
        remaining = [entry for entry in listeners if fn is not None and entry[0] != fn]
        if len(remaining) == len(listeners):
            raise ConfigError(
                f"No such listener of `{event}`.{did_you_mean(event, self._listeners)} "
                f"Events with listeners are: {', '.join(sorted(self._listeners)) or 'none'}."
            )
        self._listeners[event] = remaining

    def post(self, event: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Queue an event and wake the threads that wait for it; safe from any thread."""
        emission = Emission(args, kwargs)
        with self._posted:
            if self._listeners.get(event):
                self.pending.append((event, emission))
            for box in self._waiting.get(event, []):
                box.append((emission, event))
            self._posted.notify_all()
        self._notify()
        if self._router is not None:
            self._router.wake_pump()

    @contextmanager
    def notifies(self, notify: Callable[[], None]) -> Iterator[None]:
        """Call `notify()` after each post, for the length of a `with` block."""
        before, self._notify = self._notify, notify
        try:
            yield
        finally:
            self._notify = before

    def deliver(self) -> None:
        """Call the listeners of all queued events, if this is the thread to do so.

        An event that a listener emits queues up behind those already there.
        """
        if self._delivering or threading.get_ident() != self.owner:
            return

        self._delivering = True
        try:
            while self.pending:
                event, emission = self.pending.popleft()
                for entry in list(self._listeners.get(event, [])):
                    self._call(event, entry, emission)
        finally:
            self._delivering = False

    def _call(self, event: str, entry: tuple[Listener, bool], emission: Emission) -> None:
        fn, once = entry
        if once and entry in self._listeners[event]:
            self._listeners[event].remove(entry)
        began_ns = time.monotonic_ns()
        try:
            fn(*emission.args, **emission.kwargs)
        except BaseException as error:
            raised = refuse_silent_exit(error, f"Listener `{name_of(fn)}` of event `{event}`")
            note_once(raised, f"in listener `{name_of(fn)}` of event `{event}`")
            if raised is error:
                raise
            raise raised from error
        finally:
            draw_listener(event, began_ns)

    def wait_for(
        self, event: str, timeout: float | None, stop: Callable[[], bool]
    ) -> Emission | None:
        """Block until an event of this name is posted, delivering others meanwhile.

        Args:
            event: The name to wait for; only what is posted from now on counts.
            timeout: Seconds; `None` waits for ever.
            stop: Ends the wait early, with `None` as its result.

        Raises:
            DeadlineExceeded: Nothing came in time.
        """
        box: list[tuple[Emission, str]] = []
        began_ns = time.monotonic_ns()
        deadline = Deadline.after(timeout, self._clock)
        deliverable = threading.get_ident() == self.owner and not self._delivering

        def ready() -> bool:
            return bool(box) or stop() or (deliverable and bool(self.pending))

        with self._posted:
            self._waiting.setdefault(event, []).append(box)
        try:
            while True:
                if self._router is not None:
                    self._router.pump(ready, deadline.remaining)
                awake = ready()
                if not awake:
                    with self._posted:
                        awake = deadline.wait(self._posted, ready)
                if deliverable:
                    self.deliver()
                if box:
                    emission, said = box[0]
                    draw_wait(said, began_ns)
                    return emission
                if stop():
                    return None
                if not awake:
                    raise DeadlineExceeded(
                        f"No event `{event}` came within {timeout:g} s. Emit it from another "
                        f"node, thread or listener, or give `wait_for` a longer timeout."
                    )
        finally:
            with self._posted:
                self._waiting[event].remove(box)

    def wake(self) -> None:
        """Wake all waits so that they check `stop` again."""
        with self._posted:
            self._posted.notify_all()
        if self._router is not None:
            self._router.wake_pump()
