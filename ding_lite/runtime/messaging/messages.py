"""The messages of a task: its events and streams, and the ctx values of its job's nodes.

An event is queued until the task delivers it, at the latest between two middleware. So a listener
never runs at the same time as a middleware of a task that is not async. Its exception ends the run
like that of a middleware.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ding_lite.clock import Clock, Deadline, QuietCondition
from ding_lite.errors import ConfigError, DeadlineExceeded, PeerLost, did_you_mean
from ding_lite.interruption import is_interrupted
from ding_lite.runtime.context import (
    LOCAL_KEYS,
    Context,
    Latch,
    ParallelContext,
    plain_key,
    share_latch,
)
from ding_lite.runtime.messaging.inbox import FINISH, Progress, check_listener, check_name
from ding_lite.runtime.messaging.router import Router
from ding_lite.runtime.messaging.streams import Item
from ding_lite.runtime.middleware import name_of, note_once, refuse_silent_exit
from ding_lite.runtime.trace.messages import draw_listener, draw_wait

Listener = Callable[..., object]


class Emission(NamedTuple):
    """The arguments of an event."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Messages:
    """The messages of one task; it receives messages of other nodes from the router.

    `labels` are those of the node and of the task. `is_aside` returns whether another task, which
    runs, speaks for the node: this one then neither ends the job nor publishes its ctx.
    """

    def __init__(
        self,
        router: Router,
        labels: frozenset[str],
        latch: Latch,
        ctx: Callable[[], Context],
        is_aside: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self.parallel_ctx = ParallelContext(router._find_node)
        """For each key, the newest value that any node has put on its ctx."""
        share_latch(self.parallel_ctx, latch)
        self.pending: deque[tuple[str, Emission]] = deque()
        """Events not yet delivered; the pipeline checks it between two middleware."""
        self.owner = threading.get_ident()
        """The thread on which the task runs; only this thread delivers."""
        self.router = router
        self._labels = labels
        self._latch = latch
        self._ctx = ctx
        self._is_aside = is_aside
        self._clock = clock
        self._listeners: dict[str, list[tuple[Listener, bool]]] = {}
        self._waiting: dict[str, list[list[tuple[Emission, str]]]] = {}
        self._notify: Callable[[], None] | None = None
        self._lock = threading.RLock()
        self._posted = QuietCondition(self._lock)
        self._delivering = False
        self._shares: list[tuple[tuple[str, ...], tuple[str, ...] | None]] = []
        self._leave: Callable[[], None] | None = None
        self._failure: Exception | None = None
        latch.listen(self._end_job, of_job=True)
        latch.listen(self._announce_end)
        latch.step.listen(self._wake_waits)
        latch.may_leave = lambda: router.may_leave

    def _end_job(self) -> None:
        if not self._is_aside():
            # Also without a connected node: lost ones may come back.
            self.router.emit(FINISH, self.router._inbox.run)

    def subscribe(self) -> None:
        """Receive the messages of other nodes from now on."""
        if self._leave is None:
            self._leave = self.router.join(self)

    def unsubscribe(self) -> None:
        if self._leave is not None:
            self._leave()
            self._leave = None

    def when(self) -> str:
        """Return the step and the node, for the note on an exception."""
        labels = ", ".join(sorted(self._labels))
        return f"step {self._ctx()['total_step']}, node {self.router.node_id}, labels: {labels}"

    def check(self) -> None:
        """Raise NodeReplaced or PeerLost if this node has been cut off from its job."""
        if self._failure is not None:
            raise self._failure

    # -- events ----------------------------------------------------------------------------

    def on(self, event: str, fn: Listener, *, once: bool = False) -> None:
        """Call `fn` with the arguments of each event of this name; listeners keep their order."""
        check_listener(event, fn)
        self._listeners.setdefault(event, []).append((fn, once))

    def off(self, event: str, fn: Listener | None = None) -> None:
        listeners = self._listeners.get(event, [])
        remaining = [entry for entry in listeners if fn is not None and entry[0] != fn]
        if len(remaining) == len(listeners):
            others = sorted(name for name, known in self._listeners.items() if known)
            raise ConfigError(
                f"No such listener of `{event}`.{did_you_mean(event, others)} "
                f"Events with listeners are: {', '.join(others) or 'none'}."
            )
        self._listeners[event] = remaining

    def emit(
        self,
        event: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        only_local: bool,
        only_remote: bool,
    ) -> None:
        event = check_name(event, "an event")
        if only_local and only_remote:
            raise ConfigError(
                "`only_local` and `only_remote` together would reach no node; give one of them."
            )
        if event == FINISH:
            raise ConfigError(
                "The event `finish` follows from `task.finish = True` or `ctx.finish = True`; "
                "set that instead of emitting it."
            )
        if not only_local:
            self.router.emit(event, *args, **kwargs)
        if not only_remote:
            self._post(event, Emission(args, kwargs))
            if self.pending:
                self.deliver()

    def _post(self, event: str, emission: Emission) -> None:
        """Queue an event and wake the threads that wait for it; safe from any thread."""
        if not (self._listeners.get(event) or self._waiting.get(event)):
            return
        with self._lock:
            if self._listeners.get(event):
                self.pending.append((event, emission))
            for box in self._waiting.get(event, []):
                box.append((emission, event))
            self._posted.notify_all()
        if (notify := self._notify) is not None:
            notify()
        self.router.wake_pump()

    @contextmanager
    def notifies(self, notify: Callable[[], None]) -> Iterator[None]:
        """Call `notify()` after each event that is queued, within a `with` block."""
        before, self._notify = self._notify, notify
        try:
            yield
        finally:
            self._notify = before

    def deliver(self) -> None:
        """Call the listeners of queued events, if on the task's thread, then of those they emit."""
        if self._delivering or threading.get_ident() != self.owner or self.router._is_reading():
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
            note_once(raised, f"in listener `{name_of(fn)}` of event `{event}`, {self.when()}")
            if raised is error:
                raise
            raise raised from error
        finally:
            if type(event) is not str:
                draw_listener(event, began_ns)

    def wait_for(self, event: str, timeout: float | None) -> Emission | None:
        """Block until an event of this name is emitted, delivering others; None if the job ends."""
        self.subscribe()
        box: list[tuple[Emission, str]] = []
        began_ns = time.monotonic_ns()
        deadline = Deadline.after(timeout, self._clock)
        deliverable = threading.get_ident() == self.owner and not self._delivering
        latch = self._latch

        def ready() -> bool:  # called several times for each message
            has_come = box or (deliverable and self.pending)
            return bool(has_come) or latch.ends_waits

        with self._lock:
            self._waiting.setdefault(event, []).append(box)
        try:
            while True:
                self.router.pump(ready, deadline.remaining)
                awake = ready()
                if not awake:
                    with self._lock:
                        awake = deadline.wait(self._posted, ready)
                if deliverable:
                    self.deliver()
                if box:
                    emission, description = box[0]
                    draw_wait(description, began_ns)
                    return emission
                if latch.ends_waits:
                    return None
                if not awake:
                    raise DeadlineExceeded(
                        f"No event `{event}` came within {timeout:g} s. Emit it from another "
                        f"node, thread or listener, or give `wait_for` a longer timeout."
                    )
        finally:
            with self._lock:  # not by `remove`: another wait may have an equal box
                others = [other for other in self._waiting.pop(event) if other is not box]
                if others:
                    self._waiting[event] = others

    def _announce_end(self) -> None:
        """Post `finish` to the task's listeners; called once, on the thread that sets the latch."""
        self._post(FINISH, Emission((), {}))
        self._wake_waits()

    def _wake_waits(self) -> None:
        self.router.wake()
        with self._lock:
            self._posted.notify_all()
        self.router.wake_pump()
        self.parallel_ctx._wake()

    # -- the ctx and streams ---------------------------------------------------------------

    def share(self, keys: tuple[str, ...], to: str | Iterable[str] | None) -> None:
        """Send these keys, and no unshared ones, to the nodes that patterns match."""
        call = f"task.share({', '.join(map(repr, keys))})"
        patterns = self.router._checked_receivers(call, to)
        self._shares.append((tuple(map(plain_key, keys)), patterns))

    def publish(self, ctx: Context) -> None:
        if self._is_aside():
            return
        if not self._shares:
            self.router.publish_ctx({k: v for k, v in ctx.items() if k not in LOCAL_KEYS})
            return
        self.router._publish_parts(
            [({key: ctx[key] for key in keys if key in ctx}, to) for keys, to in self._shares]
        )

    def wait_ctx(
        self, newer_than: Mapping[str, Any], timeout: float | None
    ) -> ParallelContext | None:
        """Block until other nodes have sent values newer than these, or the job ends."""
        if not isinstance(newer_than, Mapping):
            raise ConfigError(
                f"`newer_than` is {newer_than!r:.80}; a dict of keys with the newest known values "
                f"was expected, such as `{{'train_iter': 0}}`."
            )
        self.subscribe()
        router, latch = self.router, self._latch
        deadline = Deadline.after(timeout, self._clock)
        until = router._checked(lambda: latch.ends_waits or not router.has_audience, timeout)
        newest = self.parallel_ctx._wait(newer_than, deadline, until)
        if newest is not None or latch.ends_waits:
            return newest
        if len(router.world) == 1:
            raise ConfigError(
                "`wait_parallel_ctx` and `attach_callback` wait for the ctx of other nodes, but "
                "this task runs alone. Start it with `Parallel.runner(...)`, or ask "
                "`task.router.is_active` first."
            )
        raise PeerLost(
            "`wait_parallel_ctx` and `attach_callback` wait for the ctx of other nodes, but all of "
            "them have left, and what they have sent is not newer. A node leaves when its `main` "
            "has returned."
        )

    def receive(self, stream: str, timeout: float | None) -> Item | None:
        self.subscribe()
        return self.router.receive(stream, timeout=timeout, until=lambda: self._latch.ends_waits)

    # -- called by the router --------------------------------------------------------------

    def receive_event(self, node_id: int, event: str, args: tuple[Any, ...], kwargs: Any) -> None:
        if event == FINISH:
            # Ctrl-C interrupts all nodes of a terminal; any of them may announce it first.
            end = self._latch.set if is_interrupted() else self._latch.finish
            end()
        else:
            self._post(event, Emission(args, kwargs))

    def receive_failure(self, error: Exception) -> None:
        """End the run with an error, as this node is cut off from the job."""
        if not self._latch.is_set:
            self._failure = error
            self._latch.set(only_here=True)

    def receive_ctx(self, node_id: int, values: Mapping[str, Any]) -> None:
        self.parallel_ctx._receive(node_id, values)

    def progress(self) -> Progress:
        ctx = self._ctx()
        return Progress(
            total_step=ctx["total_step"],
            env_step=ctx.get("env_step"),
            num_waiting=len(self.pending),
            finish=self._latch.is_set,
            thread=self.owner,
        )
