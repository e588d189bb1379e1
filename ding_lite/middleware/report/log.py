"""Write log lines, on the terminal that the other reports share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TextIO, cast

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.io.text import as_text
from ding_lite.log import write_to_stderr
from ding_lite.middleware.checks import Period
from ding_lite.middleware.report.reporter import Reporter
from ding_lite.middleware.report.throughput import STAGE_SECONDS
from ding_lite.runtime.middleware import Middleware

if TYPE_CHECKING:
    from rich.console import Console

_ROWS_PER_HEADING = 20
_DETAILS = ("episode_", "time/", STAGE_SECONDS, "eval_episodes")


def log(
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Middleware:
    """Show a row with the newest metrics periodically, and one when the run ends.

    The rows are a table on standard error, with a heading every 20 rows; logging need not be
    configured. Metrics named `episode_...`, `time/...` or `seconds/...` are left out; `jsonl`
    writes them, too.

    Context:
        reads: env_step, metrics, total_step, train_iter

    Args:
        every: Steps of the pipeline from one row to the next. 100 to 1,000 is usual.
        every_env_steps: Env steps of the ctx from one row to the next, instead of `every`.
        clock: The clock of the rate.

    Raises:
        ConfigError: A setting is out of range.
    """
    return _Log(Period(every, every_env_steps), clock)


class _Log(Reporter):
    __name__ = "log"

    def __init__(self, period: Period, clock: Clock) -> None:
        super().__init__(period)
        self._clock = clock
        self._columns: tuple[str, ...] = ()
        self._rows = 0
        self._shown: tuple[float, int] = clock.now(), 0

    def __enter__(self) -> Self:
        self._shown = self._clock.now(), self._shown[1]
        return super().__enter__()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._shown = self._shown[0], int(state["reported_env_step"])

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "reported_env_step": self._shown[1]}

    def write(self, metrics: dict[str, float], env_step: int) -> None:
        (then, before), counters = self._shown, self._counters
        self._shown = now, after = self._clock.now(), counters["env_step"]
        values = counters | metrics | counters
        cells = {k: as_text(v) for k, v in values.items() if not k.startswith(_DETAILS)}
        if self._has_env_step:
            cells["steps/s"] = f"{(after - before) / max(now - then, 1e-9):,.0f}"
        else:  # other nodes make the env steps of this job, and this node has no count of them
            del cells["env_step"]
        if not self._has_train_iter:  # likewise with updates
            del cells["train_iter"]
        self._write_row(cells)

    def _write_row(self, values: Mapping[str, str]) -> None:
        """Write a row of the table, and a heading if the columns changed or 20 rows have passed."""
        from rich.text import Text

        if self._columns != tuple(values) or self._rows % _ROWS_PER_HEADING == 0:
            self._columns, self._rows = tuple(values), 0
            for line in _heading(self._columns):
                terminal().print(Text(line, style="dim"), soft_wrap=True)
        cells = (f"{value:>{_width(name)}}" for name, value in values.items())
        terminal().print("  ".join(cells), soft_wrap=True)
        self._rows += 1


def _width(column: str) -> int:
    return max(6, *(len(word) for word in _words(column)))


def _words(column: str) -> list[str]:
    first, _, second = column.partition("_")
    return [first, second] if second else ["", first]


def _heading(columns: Sequence[str]) -> list[str]:
    cells = [[f"{word:>{_width(column)}}" for word in _words(column)] for column in columns]
    return ["  ".join(line) for line in zip(*cells, strict=True)]


class _StandardError:
    """Standard error for rich; the terminal of a run may be closed while it continues."""

    def write(self, text: str) -> None:
        write_to_stderr(text, _stderr())

    def flush(self) -> None:
        """Do nothing: `write` does it."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the stream
        return getattr(_stderr(), name)


def _stderr() -> TextIO | None:
    # While a live line is shown, rich puts a stream of its own there, which writes to the console.
    return cast("TextIO | None", getattr(sys.stderr, "rich_proxied_file", sys.stderr))


@functools.cache
def terminal() -> Console:
    """Return the shared console on standard error, which log lines and the live line use."""
    from rich.console import Console

    return Console(file=cast(TextIO, _StandardError()), highlight=False)
