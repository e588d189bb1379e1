"""Step wrappers that show the time of each middleware, as a table and as a time line."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from ding_lite.errors import ConfigError
from ding_lite.log import write_to_stderr
from ding_lite.runtime.composition import distinct
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import current_router
from ding_lite.runtime.middleware import (
    Middleware,
    MiddlewareShape,
    around,
    around_rest,
    name_of,
    named,
    shape_of,
)
from ding_lite.runtime.trace.timeline import Timeline
from ding_lite.settings.rules import check_all, whole


@dataclass(frozen=True)
class Timing:
    """The time of one middleware, in seconds a step, over the last steps."""

    name: str
    mean: float
    last: float
    share: float
    """The fraction of the time of all middleware, 0 to 1."""


class _Stopwatch:
    """Sums the time of one middleware within a step."""

    __slots__ = ("_started", "elapsed", "has_run", "name", "window")

    def __init__(self, name: str, window: int) -> None:
        self.name = name
        self.elapsed = 0.0
        self.has_run = False
        """Whether it has run in this run of a task."""
        self.window: deque[float] = deque(maxlen=window)
        self._started = 0.0

    def __enter__(self) -> None:
        self.has_run = True
        self._started = perf_counter()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.elapsed += perf_counter() - self._started


class StepTimer:
    """Time every middleware; a step wrapper for `task.use_step_wrapper`.

    A generator counts with both its halves, but not the rest of the step between them. The head of
    the table is the sum over the middleware; in async mode, where they overlap, a step takes less.
    In the steps that show the table, the means are also in `ctx.metrics` as `time/<middleware>`, in
    milliseconds, and so in TensorBoard.

    Args:
        print_per_step: Steps between two tables; 0 never shows one.
        smooth_window: The number of last steps in the means, and at least the steps between two
            tables. More steps are smoother and follow changes later.
        write: Called with each table; it goes to standard error by default.

    Raises:
        ConfigError: A number is out of range.

    Example:
        >>> from ding_lite.runtime import Task
        >>> timer = StepTimer(print_per_step=0)
        >>> with Task() as task:
        ...     _ = task.use_step_wrapper(timer).use(lambda ctx: None)
        ...     task.run(max_step=100)
        >>> [timing.name for timing in timer.summary()]
        ['lambda']
    """

    def __init__(
        self,
        print_per_step: int = 1,
        smooth_window: int = 10,
        *,
        write: Callable[[str], object] | None = None,
    ) -> None:
        check_all(whole(0, print_per_step=print_per_step), whole(1, smooth_window=smooth_window))
        self._print_per_step = int(print_per_step)
        self._window = max(int(smooth_window), self._print_per_step)
        self._write = write or write_to_stderr
        self._watches: list[_Stopwatch] = []
        self._step = -1
        self._ctx: Context | None = None
        self._num_timed = 0
        self._num_shown = 0
        self._lock = threading.Lock()

    def __call__(self, fn: Middleware) -> Middleware:
        """Return a timed middleware that does the same."""
        watch = _Stopwatch(name := name_of(fn), self._window)
        self._watches.append(watch)

        def stretch(ctx: Context) -> _Stopwatch:
            if ctx is not self._ctx:
                self._begin_step(ctx)
            return watch

        if shape_of(fn) is not MiddlewareShape.FUNCTION:
            return around(fn, stretch)

        def timed(ctx: Context) -> Any:  # the same as `around` makes, in half the time
            if ctx is not self._ctx:
                self._begin_step(ctx)
            started = perf_counter()
            try:
                out = fn(ctx)
            finally:
                watch.elapsed += perf_counter() - started
                watch.has_run = True
            return None if out is None else around_rest(out, ctx, stretch, name)

        named(timed, name)
        return timed

    def summary(self) -> list[Timing]:
        """Return the timing of each middleware over the last steps, in pipeline order."""
        watches = [watch for watch in self._watches if watch.window]
        means = [sum(watch.window) / len(watch.window) for watch in watches]
        total = sum(means) or 1.0
        names = distinct([watch.name for watch in watches])
        return [
            Timing(name, mean, watch.window[-1], mean / total)
            for name, mean, watch in zip(names, means, watches, strict=True)
        ]

    def __enter__(self) -> Self:
        """Begin a run; the table of the last steps is shown at its end.

        Middleware that only an earlier task has are no longer in the table.
        """
        for watch in self._watches:
            watch.has_run = False
        return self

    def __exit__(self, *raised: object) -> None:
        self._end_step()
        if self._print_per_step and self._num_timed > self._num_shown:
            self._show()

    def _begin_step(self, ctx: Context) -> None:
        with self._lock:
            if ctx["total_step"] == self._step:  # another thread of this step was first
                return
            self._end_step()
            self._step, self._ctx = ctx["total_step"], ctx
            if self._print_per_step and self._num_timed - self._num_shown >= self._print_per_step:
                self._show()
                for timing in self.summary():
                    ctx.metrics[f"time/{timing.name}"] = 1e3 * timing.mean

    def _end_step(self) -> None:
        if self._step < 0:
            return
        for watch in self._watches:
            if watch.has_run:
                watch.window.append(watch.elapsed)
            else:
                watch.window.clear()
            watch.elapsed = 0.0
        self._step, self._ctx = -1, None
        self._num_timed += 1

    def _show(self) -> None:
        self._num_shown = self._num_timed
        timings = self.summary()
        width = max((len(timing.name) for timing in timings), default=0)
        lines = [
            f"  {t.name:{width}}  {1e3 * t.mean:9.3f} ms mean  {1e3 * t.last:9.3f} ms last  "
            f"{100 * t.share:5.1f} %"
            for t in timings
        ]
        total = 1e3 * sum(timing.mean for timing in timings)
        head = f"step timer, {self._num_timed} steps, {total:.3f} ms a step"
        self._write("\n".join([head, *lines]) + "\n")


class Trace:
    """Record a time line of all middleware and messages; a step wrapper.

    The file opens in Perfetto (ui.perfetto.dev) or chrome://tracing. It has one row per thread, one
    slice for each part of each middleware, and an arrow for each message from the sender's slice to
    the receiver's. All nodes of a job on one machine write one file, if their programs use the same
    path. The file is complete at any moment, except for the closing bracket while it is written, so
    a run that is killed has a trace, too.

    On several machines each machine has its own file, without arrows between them: their clocks
    differ by more than a message takes.

    Args:
        path: The file; the first run replaces an existing one, unless another node of the same
            job has begun it.

    Raises:
        ConfigError: `path` is a folder.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        if path.is_dir():
            raise ConfigError(f"`{path}` is a folder; a trace is a file, such as `trace.json`.")
        self._timeline = Timeline(path)
        self._num_runs = 0
        self._num_rows = 0
        self._lock = threading.Lock()

    def __call__(self, fn: Middleware) -> Middleware:
        """Return a recorded middleware that does the same."""
        self._num_rows += 1
        name, row = name_of(fn), self._num_rows
        return around(fn, lambda ctx: self._timeline.recording(name, ctx["total_step"], row))

    def __enter__(self) -> Self:
        """Open the file; a later run appends to the records of earlier ones.

        If several runs are under way, such as those of two tasks, the last one closes the file.
        """
        with self._lock:
            if self._num_runs == 0:
                self._timeline.open(current_router())
            self._num_runs += 1
        return self

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._num_runs -= 1
            if self._num_runs == 0:
                self._timeline.close()
