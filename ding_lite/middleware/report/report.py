"""Report the metrics of a run: to a function, or to files of a directory and the terminal."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

from ding_lite.errors import ConfigError, kind_of
from ding_lite.io.files import replacing
from ding_lite.middleware.checks import Period
from ding_lite.middleware.report.curve import curve
from ding_lite.middleware.report.jsonl import jsonl
from ding_lite.middleware.report.progress import progress
from ding_lite.middleware.report.reporter import Reporter
from ding_lite.middleware.report.tensorboard import tensorboard
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware, composed_of

OPTIONS = "report.json"
"""The file of a reported directory with the options that belong to no row."""


@runtime_checkable
class RunLike(Protocol):
    """A run like `ding_lite.recipes.Run`: the directory, the title and the goal of its reports."""

    @property
    def directory(self) -> Path: ...
    @property
    def title(self) -> str: ...
    @property
    def goal(self) -> float | None: ...
    @property
    def max_env_steps(self) -> int: ...
    @property
    def quiet(self) -> bool: ...


def report(
    to: Callable[[dict[str, float], int], object] | RunLike | os.PathLike[str],
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
    title: str | None = None,
    target: float | None = None,
    max_env_steps: int | None = None,
) -> Middleware:
    """Report the newest value of every metric periodically, and when the run ends.

    A function is called with the metrics. For a run or a directory, `metrics.jsonl`, events for
    TensorBoard and `curve.png` are written, and a live line is shown on the terminal unless the run
    is quiet. `jsonl`, `tensorboard`, `curve` and `progress` make each of these alone. For a
    directory, `report.json` keeps the target and the maximum for `ding-lite plot` and `report`.

    Most metrics are not written in every step: `return` is written when an episode ends,
    `eval_return` when an evaluation ends. The newest value of each metric is reported, also if it
    is from before a resume. Place it after the middleware that write metrics.

    Context:
        reads: env_step, metrics, total_step, train_iter

    Args:
        to: A `Run`; the `Path` of a directory; or a function, called as `fn(metrics, env_step)`
            with metrics by name. If the ctx has no `env_step`, as on a node that makes no env
            steps, the argument is the step of the pipeline.
        every: Steps of the pipeline from one report to the next, as in all middleware.
        every_env_steps: Env steps of the ctx from one report to the next, instead of `every`.
        title: The title of the curve; that of the run by default.
        target: The target return; that of the run by default.
        max_env_steps: The maximum of env steps; that of the run by default.

    Raises:
        ConfigError: The function cannot be called with these arguments, or a setting is out of
            range.

    Example:
        >>> from ding_lite import Task
        >>> seen = []
        >>> with Task() as task:
        ...     _ = task.use(lambda ctx: ctx.metrics.update(loss=1 / (1 + ctx.total_step)))
        ...     _ = task.use(report(lambda metrics, step: seen.append((step, metrics)), every=2))
        ...     task.run(max_step=3)
        >>> [(step, round(metrics["loss"], 2)) for step, metrics in seen]
        [(2, 0.5), (3, 0.33)]
    """
    kept: list[Middleware] = []
    if isinstance(to, RunLike):
        directory, quiet = to.directory, to.quiet
        title, target = title or to.title, to.goal if target is None else target
        max_env_steps = to.max_env_steps if max_env_steps is None else max_env_steps
    elif isinstance(to, os.PathLike):
        directory, quiet = Path(to), False
        options = {"target": target, "max_env_steps": max_env_steps}
        given = {name: value for name, value in options.items() if value is not None}
        kept.append(_Options(directory, given))
    else:
        if fault := _fault_of(to):
            raise ConfigError(
                f"`report` got {fault}; a function was expected, which is called as fn(metrics, "
                f"env_step), a run, or the Path of a directory: mw.report(print, every=50)."
            )
        return _Report(to, Period(every, every_env_steps))
    parts = [
        *kept,
        jsonl(directory / "metrics.jsonl", every=every, every_env_steps=every_env_steps),
        tensorboard(directory, every=every, every_env_steps=every_env_steps),
        curve(directory / "curve.png", target=target, title=title or "Learning curve"),
    ]
    if not quiet:
        parts.append(progress(max_env_steps=max_env_steps, target=target))

    def _report(ctx: Context) -> None:
        for part in parts:
            part(ctx)

    composed_of(_report, parts)
    return _report


class _Options:
    """Writes the options of a report that its files do not have, when the run begins.

    Without options it removes those of an earlier report, and no other file of that name.
    """

    def __init__(self, directory: Path, options: Mapping[str, float]) -> None:
        self._file = directory / OPTIONS
        self._options = options

    def __call__(self, ctx: Context) -> None:
        pass

    def __enter__(self) -> Self:
        if not self._options:
            if self._file.is_file() and self._file.read_bytes().startswith(b'{"options": '):
                self._file.unlink()
            return self
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._file) as unfinished:
            unfinished.write_text(json.dumps({"options": self._options}) + "\n", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _fault_of(fn: object) -> str | None:
    """Return the reason why an object cannot be called with metrics; None if it may be."""
    if not callable(fn):
        return kind_of(fn)
    if isinstance(fn, type):
        return f"the class {fn.__name__}, and no instance of it"
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
        return "an `async` function, which nothing would wait for"
    try:
        inspect.signature(fn).bind({}, 0)
    except TypeError as error:
        return f"a function that cannot be called with metrics and env steps ({error})"
    except ValueError:  # some functions in C have no signature
        pass
    return None


class _Report(Reporter):
    __name__ = "report"

    def __init__(self, fn: Callable[[dict[str, float], int], object], period: Period) -> None:
        super().__init__(period)
        self._fn = fn

    def write(self, metrics: dict[str, float], env_step: int) -> None:
        self._fn(metrics, env_step)
