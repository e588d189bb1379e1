"""Write log lines; helpers that the other reports share.

Reports look at `ctx.metrics` and remember the newest value of each metric, because most are not
written in every step. Place them at the end of the pipeline. What they need of rich, tensorboard
and matplotlib is imported when a run first needs it.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.errors import ConfigError
from ding_lite.io.files import naming
from ding_lite.middleware.checks import due, number
from ding_lite.middleware.report.throughput import MEASURED
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings import at_least, check_all

if TYPE_CHECKING:
    from rich.console import Console

_ROWS_PER_HEADING = 20
_DETAILS = ("episode_", "time/", "eval_env_step")

logger = logging.getLogger(__name__)


def log(
    *,
    every: int,
    path: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Middleware:
    """Write a row with the newest metrics now and then, and one when the run ends.

    The rows are a table on standard error, with a heading every 20 rows, and need no logging
    to be set up. Metrics named `episode_...` or `time/...` are details for the file, and so is
    `eval_env_step`: when `eval_return` was written last.

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
        self._knows_env_step = False
        self._columns: tuple[str, ...] = ()
        self._rows = 0
        self._started = self._reported_at = clock.now()
        # Of the run that goes on: how long it took so far, and how long its file was.
        self._wall_s_before = 0.0
        self._cut_at: int | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()  # a path that cannot be written to is an error of the start
            if self._cut_at is not None:
                _cut(self._path, self._cut_at)
        self._reported_at = self._clock.now()
        self._started = self._reported_at - self._wall_s_before
        self._wall_s_before, self._cut_at = 0.0, None
        return self

    def __call__(self, ctx: Context) -> None:
        self._latest.update(ctx.metrics)
        self._knows_env_step |= "env_step" in ctx
        self._counters = {
            "step": ctx.total_step + 1,
            "env_step": ctx.get("env_step", 0),
            "train_iter": ctx.get("train_iter", 0),
        }
        if "eval_return" in ctx.metrics:
            self._latest["eval_env_step"] = self._counters["env_step"]
        if due(ctx, self._every):
            self._report()

    def __exit__(self, *error: object) -> None:
        if self._counters != self._reported:
            self._report()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next rows depend on, and how long the file is."""
        has_file = self._path is not None and self._path.exists()
        return {
            "file_bytes": self._path.stat().st_size if self._path and has_file else None,
            "wall_s": self._clock.now() - self._started,
            "counters": dict(self._counters),
            "reported": dict(self._reported),
            "metrics": pack_metrics(self._latest),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state; rows that came later are cut off when the run begins."""
        self._cut_at = state["file_bytes"]
        self._wall_s_before = float(state["wall_s"])
        self._counters = dict(state["counters"])
        self._reported = dict(state["reported"])
        self._latest = unpack_metrics(state["metrics"])

    def _report(self) -> None:
        now = self._clock.now()
        since = self._counters["env_step"] - self._reported.get("env_step", 0)
        rate = since / max(now - self._reported_at, 1e-9)
        self._reported, self._reported_at = self._counters, now
        metrics = {name: number(name, value) for name, value in self._latest.items()}

        if self._path is not None:
            row = {**self._counters, "wall_s": round(now - self._started, 3), **metrics}
            finite = {k: v if math.isfinite(v) else None for k, v in row.items()}
            with naming(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(finite) + "\n")
        if not self._quiet:
            shown = {**self._counters, **metrics}
            cells = {k: spell(v) for k, v in shown.items() if not k.startswith(_DETAILS)}
            if self._knows_env_step:
                cells["steps/s"] = f"{rate:,.0f}"
            else:  # other nodes make the env steps of this job, and their number is not known here
                del cells["env_step"]
            self._write_row(cells)

    def _write_row(self, values: Mapping[str, str]) -> None:
        """Write a row of the table, under a heading of its columns where that is due."""
        from rich.text import Text

        if self._columns != tuple(values) or self._rows % _ROWS_PER_HEADING == 0:
            self._columns, self._rows = tuple(values), 0
            for line in _heading(self._columns):
                terminal().print(Text(line, style="dim"), soft_wrap=True)
        cells = (f"{value:>{_width(name)}}" for name, value in values.items())
        terminal().print("  ".join(cells), soft_wrap=True)
        self._rows += 1


def _cut(path: Path, size: int) -> None:
    """Take off what was written after a checkpoint, and half a line where one was left."""
    with path.open("r+b") as file:
        content = file.read(size)
        if len(content) < size:
            logger.warning(
                "%s has %d bytes, and had %d when the checkpoint was saved; the rows that are "
                "missing cannot be made again",
                path,
                len(content),
                size,
            )
        file.truncate(content.rfind(b"\n") + 1)


def _width(column: str) -> int:
    return max(6, *(len(word) for word in _words(column)))


def _words(column: str) -> list[str]:
    """Split a column's name in two, for the two lines of the heading."""
    first, _, second = column.partition("_")
    return [first, second] if second else ["", first]


def _heading(columns: Sequence[str]) -> list[str]:
    cells = [[f"{word:>{_width(column)}}" for word in _words(column)] for column in columns]
    return ["  ".join(line) for line in zip(*cells, strict=True)]


def file_path(path: str | os.PathLike[str]) -> Path:
    """Refuse a directory where a file is meant.

    Raises:
        ConfigError: `path` is a directory.
    """
    file = Path(path)
    if file.is_dir():
        raise ConfigError(f"{file} is a directory; the path of a file was expected.")
    return file


def pack_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Turn metrics into what a checkpoint can hold, also those that are not finite."""
    kept = {name: number(name, value) for name, value in metrics.items() if name not in MEASURED}
    return {"names": list(kept), "values": np.array(list(kept.values()), dtype=np.float64)}


def unpack_metrics(packed: Mapping[str, Any]) -> dict[str, Any]:
    """Turn what `pack_metrics` has returned into metrics."""
    return dict(zip(packed["names"], packed["values"].tolist(), strict=True))


def spell(value: float) -> str:
    """Write a number with as many digits as one reads: 12,480, 0.0123, 341.2."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.1f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"


@functools.cache
def terminal() -> Console:
    """Make the one console on standard error, so that lines and the live display get along."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)
