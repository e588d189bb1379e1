"""Step wrappers: what a step spends its time on, as a table and as a time line."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, perf_counter_ns, time_ns
from types import TracebackType
from typing import IO, Self

from ding_lite.errors import ConfigError
from ding_lite.runtime.composition import distinct
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware, around, name_of
from ding_lite.settings import check_all, whole


@dataclass(frozen=True)
class Timing:
    """The time of one middleware, in seconds a step, over the last steps."""

    name: str
    mean: float
    last: float
    share: float
    """Its part of the time of all middleware, 0 to 1."""


class _Stopwatch:
    """Adds up the time of one middleware's stretches within a step."""

    __slots__ = ("_started", "elapsed", "name", "window")

    def __init__(self, name: str, window: int) -> None:
        self.name = name
        self.elapsed = 0.0
        self.window: deque[float] = deque(maxlen=window)
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.elapsed += perf_counter() - self._started


class StepTimer:
    """Time every middleware; a step wrapper for `task.use_step_wrapper`.

    For a generator both halves count, and not the rest of the step between them. The head of
    the table adds the middleware up; in async mode, where they overlap, a step takes less.
    In the steps that show it, the means also go to `ctx.metrics` as `time/<middleware>`, in
    milliseconds, and so to TensorBoard.

    Args:
        print_per_step: Show the table every so many steps; 0 never shows it.
        smooth_window: Means are taken over so many last steps, and never over fewer than the
            table stands for. More is smoother and later.
        write: Where the table goes; standard error by default.

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
        self._write = write or _write_to_stderr
        self._watches: list[_Stopwatch] = []
        self._step = -1
        self._num_timed = 0
        self._num_shown = 0
        self._lock = threading.Lock()

    def __call__(self, fn: Middleware) -> Middleware:
        """Return a middleware that does the same and is timed."""
        watch = _Stopwatch(name_of(fn), self._window)
        self._watches.append(watch)

        def stretch(ctx: Context) -> _Stopwatch:
            if ctx["total_step"] != self._step:
                self._begin_step(ctx)
            return watch

        return around(fn, stretch)

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
        """Begin a run; the table of the last steps is shown when it ends."""
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
            self._step = ctx["total_step"]
            if self._print_per_step and self._num_timed - self._num_shown >= self._print_per_step:
                self._show()
                for timing in self.summary():
                    ctx.metrics[f"time/{timing.name}"] = 1e3 * timing.mean

    def _end_step(self) -> None:
        if self._step < 0:
            return
        for watch in self._watches:
            watch.window.append(watch.elapsed)
            watch.elapsed = 0.0
        self._step = -1
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


def _write_to_stderr(text: str) -> None:
    sys.stderr.write(text)


class Trace:
    """Record a time line of all middleware; a step wrapper for `task.use_step_wrapper`.

    The file opens in Perfetto (ui.perfetto.dev) or chrome://tracing: one row a thread, one
    slice for each stretch of each middleware. It is in the JSON array form of the Chrome trace
    event format, which stays readable when a run is killed in the middle.

    Args:
        path: The file; one that exists is replaced at the first run.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if self._path.is_dir():
            raise ConfigError(f"`{path}` is a folder; a trace is a file, such as `trace.json`.")
        self._file: IO[str] | None = None
        self._num_runs = 0
        self._num_events = 0
        self._lock = threading.Lock()

    def __call__(self, fn: Middleware) -> Middleware:
        """Return a middleware that does the same and is recorded."""
        name = name_of(fn)
        return around(fn, lambda ctx: _Slice(self, name, ctx["total_step"]))

    def __enter__(self) -> Self:
        """Open the file; a later run appends to what an earlier one has recorded.

        Of several runs at a time, such as those of two tasks, the last one closes it.
        """
        with self._lock:
            if self._num_runs == 0:
                self._file = self._open()
            self._num_runs += 1
        return self

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._num_runs = max(0, self._num_runs - 1)
            if self._num_runs == 0 and self._file is not None:
                self._file.write("\n]\n")
                self._file.close()
                self._file = None

    def _open(self) -> IO[str]:
        """Open the file with each line flushed: a run may be killed at any moment."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._num_events == 0:
            file = self._path.open("w", buffering=1, encoding="utf-8")
            file.write("[")
        else:
            file = self._path.open("r+", buffering=1, encoding="utf-8")
            file.seek(0, os.SEEK_END)
            file.seek(file.tell() - len("\n]\n"))
        return file

    def record(self, name: str, step: int, began_ns: int, ended_ns: int) -> None:
        """Add a slice to the time line; does nothing while no run is under way.

        Args:
            name: What the slice is called.
            step: The step it belongs to.
            began_ns: Nanoseconds since the epoch, so that the nodes of a job line up.
            ended_ns: Likewise.
        """
        slice_ = {
            "name": name,
            "ph": "X",
            "ts": began_ns / 1e3,
            "dur": (ended_ns - began_ns) / 1e3,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "args": {"step": step},
        }
        with self._lock:
            if self._file is not None:
                self._file.write((",\n" if self._num_events else "\n") + json.dumps(slice_))
                self._num_events += 1


class _Slice(AbstractContextManager[None]):
    """One stretch of one middleware."""

    def __init__(self, trace: Trace, name: str, step: int) -> None:
        self._trace, self._name, self._step = trace, name, step

    def __enter__(self) -> None:
        self._began = time_ns()
        self._started = perf_counter_ns()  # the other clock may be set while this one runs

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        elapsed = perf_counter_ns() - self._started
        self._trace.record(self._name, self._step, self._began, self._began + elapsed)
