"""Write a run's metrics as lines of JSON."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.errors import ConfigError
from ding_lite.io.files import naming
from ding_lite.middleware.checks import Period, number
from ding_lite.middleware.report.reporter import Reporter
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware

logger = logging.getLogger(__name__)

_LONGEST_ROW = 1 << 20


def jsonl(
    path: str | os.PathLike[str],
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Middleware:
    """Write a row with the newest metrics periodically, and one when the run ends.

    A row also has the counters, the seconds of the run (`wall_s`), and the env step of the newest
    `eval_return` (`eval_env_step`); a metric with the name of a counter, or `wall_s`, is left out.
    Each evaluation is in a row, even if the next one follows before the end of the period. A
    resumed run removes rows that are newer than its checkpoint, and the one that was written when
    the run ended.

    Context:
        reads: env_step, metrics, total_step, train_iter

    Args:
        path: The file; rows are appended.
        every: Steps of the pipeline from one row to the next. 100 to 1,000 is usual.
        every_env_steps: Env steps of the ctx from one row to the next, instead of `every`.
        clock: The clock of `wall_s`.

    Raises:
        ConfigError: `path` is a directory, or a setting is out of range.
    """
    return _RowFile(Period(every, every_env_steps), file_path(path), clock)


class _RowFile(Reporter):
    __name__ = "jsonl"

    def __init__(self, period: Period, path: Path, clock: Clock) -> None:
        super().__init__(period)
        self._path = path
        self._clock = clock
        self._started = clock.now()
        self._wall_s_before = 0.0
        """The seconds of earlier runs of the task, or of a resumed run at its checkpoint."""
        self._cut_at: int | None = None
        """The file size of a resumed run at its checkpoint."""

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()  # raises at the start if the path cannot be written to
        if self._cut_at is not None:
            _cut(self._path, self._cut_at)
        self._started = self._clock.now() - self._wall_s_before
        self._cut_at = None
        return self

    def __call__(self, ctx: Context) -> None:
        """Store the metrics of a step, and the env step of an evaluation."""
        if "eval_return" in ctx.metrics:
            if "eval_return" in self._fresh:  # the previous evaluation is in no row yet
                self._append(self._newest)
            self._newest["eval_env_step"] = ctx.get("env_step", 0)
        super().__call__(ctx)

    def write(self, metrics: dict[str, float], env_step: int) -> None:
        self._append(metrics)

    def close(self, *, failed: bool) -> None:
        self._wall_s_before = self._clock.now() - self._started

    def _append(self, metrics: Mapping[str, Any]) -> None:
        counters = {**self._counters, "wall_s": round(self._clock.now() - self._started, 3)}
        row = counters | {k: number(k, v) for k, v in metrics.items()} | counters
        finite = {k: v if math.isfinite(v) else None for k, v in row.items()}
        with naming(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite) + "\n")

    def _state(self) -> dict[str, Any]:
        return {
            **super()._state(),
            "file": self._path.name,
            "file_bytes": self._path.stat().st_size if self._path.exists() else None,
            "wall_s": self._clock.now() - self._started,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state; newer rows are removed when the run begins."""
        super().load_state_dict(state)
        if state["file"] == self._path.name:  # unless this logger now writes to another file
            self._cut_at = state["file_bytes"]
        self._wall_s_before = float(state["wall_s"])


def file_path(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    if file.is_dir():
        raise ConfigError(f"{file} is a directory; the path of a file was expected.")
    return file


def _cut(path: Path, size: int) -> None:
    """Remove rows that are newer than a checkpoint, and an incomplete last line."""
    with path.open("r+b") as file:
        there = file.seek(0, os.SEEK_END)
        if there < size:
            logger.warning(
                "%s has %d bytes, and had %d when the checkpoint was saved; the rows that are "
                "missing cannot be made again",
                path,
                there,
                size,
            )
        end = min(size, there)
        begin = file.seek(max(0, end - _LONGEST_ROW))  # the file may be larger than the memory
        file.truncate(begin + file.read(end - begin).rfind(b"\n") + 1)
