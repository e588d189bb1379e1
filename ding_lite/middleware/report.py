"""Show a run: log lines, a live display, TensorBoard.

All of them look at `ctx.metrics` and remember the newest value of each metric, because most are
not written in every step. Place them at the end of the pipeline. What they need of rich and
tensorboard is imported when a run first needs it.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.errors import ConfigError, MiddlewareError
from ding_lite.middleware.checks import due, number
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings import at_least, check_all

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live
    from rich.text import Text

_REFRESH_SECONDS = 0.1
_PLAIN_SECONDS = 60.0
_RATE_SECONDS = 5.0
_ROWS_PER_HEADING = 20
_SHOWN_LIVE = ("episodes", "return", "eval_return", "epsilon")
_DETAILS = ("episode_", "time/")


def log(
    *,
    every: int,
    path: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Middleware:
    """Write a row with the newest metrics now and then, and one when the run ends.

    The rows are a table on standard error, with a heading every 20 rows, and need no logging
    to be set up. Metrics named `episode_...` or `time/...` are details for the file.

    Context:
        reads: env_step, metrics, total_step, train_iter

    Args:
        every: Steps from one row to the next. 100 to 1,000 is usual.
        path: A file that gets the same as JSON, one object a line, after what it holds already.
        quiet: Write to the file only.
        clock: What seconds are counted on.

    Raises:
        ConfigError: A setting is out of range, or nothing would be written at all.
    """
    check_all(
        at_least(1, every=every),
        ["`quiet` was set without a `path`, so nothing would be written"]
        if quiet and path is None
        else [],
    )
    return _Log(every, None if path is None else file_path(path), quiet=quiet, clock=clock)


def progress(
    *,
    max_env_steps: int | None = None,
    target: float | None = None,
    title: str = "",
    clock: Clock = SYSTEM_CLOCK,
) -> Middleware:
    """Show where the run stands, live.

    On a terminal that is one line, rewritten ten times a second: env steps, their rate, the
    mean return, the last evaluation, epsilon, and how long the rest will take. Elsewhere it is
    one line a minute. Either way the last one stays.

    Context:
        reads: env_step, metrics

    Args:
        max_env_steps: Where the run will end at the latest; without it there is no bar.
        target: The return to reach, shown beside the evaluation.
        title: What is running, in a word or two.
        clock: What seconds are counted on.

    Raises:
        ConfigError: A setting is out of range.
    """
    check_all(at_least(1, max_env_steps=max_env_steps) if max_env_steps is not None else [])
    return _Progress(max_env_steps, target, title, clock)


def tensorboard(directory: str | os.PathLike[str], *, every: int = 100) -> Middleware:
    """Write the newest metrics as TensorBoard scalars over env steps.

    Context:
        reads: env_step, metrics, total_step

    Args:
        directory: Where the event file goes; made when the run begins, if need be.
        every: Steps from one point to the next. Fewer draws finer and costs about 50 us a
            point and metric.

    Raises:
        ConfigError: `directory` is a file, or a setting is out of range.
    """
    check_all(at_least(1, every=every))
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise ConfigError(f"The TensorBoard directory {path} is a file. Name a directory.")
    return _TensorBoard(path, every)


def file_path(path: str | os.PathLike[str]) -> Path:
    """Refuse a directory where a file is meant.

    Raises:
        ConfigError: `path` is a directory.
    """
    file = Path(path)
    if file.is_dir():
        raise ConfigError(f"{file} is a directory; the path of a file was expected.")
    return file


@functools.cache
def _terminal() -> Console:
    """Make the one console on standard error, so that lines and the live display get along."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


# -- log ---------------------------------------------------------------------------------


class _Log:
    __name__ = "log"

    def __init__(self, every: int, path: Path | None, *, quiet: bool, clock: Clock) -> None:
        self._every = every
        self._path = path
        self._quiet = quiet
        self._clock = clock
        self._latest: dict[str, Any] = {}
        self._counters: dict[str, int] = {}
        self._reported: dict[str, int] = {}
        self._columns: tuple[str, ...] = ()
        self._rows = 0
        self._started = self._reported_at = clock.now()

    def __enter__(self) -> Self:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()  # a path that cannot be written to is an error of the start
        self._started = self._reported_at = self._clock.now()
        return self

    def __call__(self, ctx: Context) -> None:
        self._latest.update(ctx.metrics)
        self._counters = {
            "step": ctx.total_step + 1,
            "env_step": ctx.get("env_step", 0),
            "train_iter": ctx.get("train_iter", 0),
        }
        if due(ctx, self._every):
            self._report()

    def __exit__(self, *error: object) -> None:
        if self._counters != self._reported:
            self._report()

    def _report(self) -> None:
        now = self._clock.now()
        since = self._counters["env_step"] - self._reported.get("env_step", 0)
        rate = since / max(now - self._reported_at, 1e-9)
        self._reported, self._reported_at = self._counters, now
        metrics = {name: number(name, value) for name, value in self._latest.items()}

        if self._path is not None:
            row = {**self._counters, "wall_s": round(now - self._started, 3), **metrics}
            finite = {k: v if math.isfinite(v) else None for k, v in row.items()}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(finite) + "\n")
        if not self._quiet:
            shown = {**self._counters, **metrics}
            cells = {k: spell(v) for k, v in shown.items() if not k.startswith(_DETAILS)}
            self._write_row({**cells, "steps/s": f"{rate:,.0f}"})

    def _write_row(self, values: Mapping[str, str]) -> None:
        """Write a row of the table, under a heading of its columns where that is due."""
        from rich.text import Text

        if self._columns != tuple(values) or self._rows % _ROWS_PER_HEADING == 0:
            self._columns, self._rows = tuple(values), 0
            for line in _heading(self._columns):
                _terminal().print(Text(line, style="dim"), soft_wrap=True)
        cells = (f"{value:>{_width(name)}}" for name, value in values.items())
        _terminal().print("  ".join(cells), soft_wrap=True)
        self._rows += 1


def _width(column: str) -> int:
    return max(6, *(len(word) for word in _words(column)))


def _words(column: str) -> list[str]:
    """Split a column's name in two, for the two lines of the heading."""
    first, _, second = column.partition("_")
    return [first, second] if second else ["", first]


def _heading(columns: Sequence[str]) -> list[str]:
    cells = [[f"{word:>{_width(column)}}" for word in _words(column)] for column in columns]
    return ["  ".join(line) for line in zip(*cells, strict=True)]


def spell(value: float) -> str:
    """Write a number with as many digits as one reads: 12,480, 0.0123, 341.2."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.1f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"


def _spell_rate(per_second: float) -> str:
    if per_second >= 10_000:
        return f"{per_second / 1000:.0f}k steps/s"
    return f"{per_second:,.0f} steps/s"


def _spell_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# -- progress ----------------------------------------------------------------------------


class _Rate:
    """Env steps a second over the last few seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque()

    def begin(self, env_step: int) -> None:
        """Count from here, unless counting has begun already."""
        if not self._marks:
            self._marks.append((self._clock.now(), env_step))

    def update(self, env_step: int) -> float:
        """Return the rate up to here."""
        now = self._clock.now()
        self._marks.append((now, env_step))
        while len(self._marks) > 2 and now - self._marks[1][0] >= _RATE_SECONDS:
            self._marks.popleft()
        then, before = self._marks[0]
        return (env_step - before) / (now - then) if now > then else 0.0


class _Progress:
    __name__ = "progress"

    def __init__(
        self, max_env_steps: int | None, target: float | None, title: str, clock: Clock
    ) -> None:
        self._max = max_env_steps
        self._target = target
        self._title = title
        self._clock = clock
        self._rate = _Rate(clock)
        self._live: Live | None = None
        self._latest: dict[str, Any] = {}
        self._env_step = 0
        self._started = self._shown_at = clock.now()
        self._steps_per_second = 0.0
        self._ended = False

    def __enter__(self) -> Self:
        from rich.live import Live

        self._started = self._shown_at = self._clock.now()
        self._ended = False
        if _terminal().is_terminal:
            self._live = Live(self, console=_terminal(), auto_refresh=False)
            self._live.start()
        return self

    def __call__(self, ctx: Context) -> None:
        self._latest.update(ctx.metrics)
        self._env_step = ctx.get("env_step", 0)
        self._rate.begin(self._env_step)
        pause = _PLAIN_SECONDS if self._live is None else _REFRESH_SECONDS
        if self._clock.now() - self._shown_at >= pause:
            self._show()

    def __exit__(self, *error: object) -> None:
        self._ended = True
        try:
            self._show()
        finally:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _show(self) -> None:
        self._shown_at = self._clock.now()
        self._steps_per_second = self._rate.update(self._env_step)
        if self._live is not None:
            self._live.refresh()
        else:
            _terminal().print(self._line(10_000, bar=False), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Room for the ^C of a terminal, which would otherwise wrap and shift the line.
        yield self._line(options.max_width - 3, bar=True)

    def _line(self, width: int, *, bar: bool) -> Text:
        """Join the parts that fit; the dispensable ones go first when the line is short."""
        from rich.text import Text

        parts = self._parts()
        for name in ("title", "epsilon", "episodes", "rate", "return", "time"):
            if sum(part.cell_len + 2 for part in parts.values()) + 12 * bar <= width:
                break
            parts.pop(name, None)

        line = Text("  ").join(parts.values())
        if bar and self._max is not None:
            room = min(24, width - line.cell_len - 2)
            if room >= 4:
                line = Text("  ").join([_bar(self._env_step / self._max, room), line])
        line.truncate(width)
        return line

    def _parts(self) -> dict[str, Text]:
        from rich.text import Text

        def part(label: str, value: str, style: str = "bold", after: str = "") -> Text:
            return Text.assemble((label, "dim"), (value, style), (after, "dim"))

        elapsed = self._clock.now() - self._started
        values = {k: number(k, self._latest[k]) for k in _SHOWN_LIVE if k in self._latest}
        parts: dict[str, Text] = {}
        if self._title:
            parts["title"] = Text(self._title)
        if self._max is None:
            parts["env_step"] = part("", f"{self._env_step:,}", after=" env steps")
        else:
            parts["env_step"] = part("", f"{self._env_step:,}", after=f"/{self._max:,} env steps")
        parts["rate"] = part("", _spell_rate(self._steps_per_second), "")
        if "episodes" in values:
            parts["episodes"] = part("episodes ", spell(values["episodes"]), "")
        if "return" in values:
            parts["return"] = part("return ", f"{values['return']:,.1f}", "bold cyan")
        if "eval_return" in values:
            value, reached = values["eval_return"], ""
            if self._target is not None:
                reached = f"/{spell(self._target)}"
            passed = self._target is not None and value >= self._target
            parts["eval"] = part(
                "eval ", f"{value:,.1f}", "bold green" if passed else "bold yellow", reached
            )
        if "epsilon" in values:
            parts["epsilon"] = part("epsilon ", f"{values['epsilon']:.2f}", "")
        parts["time"] = part("", _spell_seconds(elapsed), "")
        if self._max is not None and self._steps_per_second > 0 and not self._ended:
            left = max(0, self._max - self._env_step) / self._steps_per_second
            parts["time"].append(f", at most {_spell_seconds(left)} left", "dim")
        return parts


def _bar(share: float, width: int) -> Text:
    from rich.text import Text

    full = round(min(max(share, 0.0), 1.0) * width)
    return Text.assemble(("━" * full, "green"), ("━" * (width - full), "bright_black"))


# -- TensorBoard -------------------------------------------------------------------------


class _TensorBoard:
    __name__ = "tensorboard"

    def __init__(self, directory: Path, every: int) -> None:
        self._directory = directory
        self._every = every
        self._writer: Any = None
        self._fresh: dict[str, Any] = {}
        self._x = 0

    def __enter__(self) -> Self:
        from tensorboard.summary import Writer  # type: ignore[import-untyped]

        self._directory.mkdir(parents=True, exist_ok=True)
        self._writer = Writer(str(self._directory))
        return self

    def __call__(self, ctx: Context) -> None:
        self._fresh.update(ctx.metrics)
        self._x = ctx.get("env_step", ctx.total_step + 1)
        if due(ctx, self._every):
            self._write()

    def __exit__(self, *error: object) -> None:
        try:
            self._write()
        finally:
            self._writer.close()
            self._writer = None

    def _write(self) -> None:
        if self._writer is None:
            raise MiddlewareError(
                "`tensorboard` was not opened: it lives as long as a run, and nobody entered it. "
                "Give it to `task.use` itself, not to a chain or a function that calls it."
            )
        fresh, self._fresh = self._fresh, {}
        for name, value in fresh.items():
            self._writer.add_scalar(name, number(name, value), self._x)
