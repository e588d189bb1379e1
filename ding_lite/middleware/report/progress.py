"""Show the progress of a run in a live line."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Self

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.io.text import as_clock, as_text
from ding_lite.middleware.checks import number
from ding_lite.middleware.env_step_budget import spent
from ding_lite.middleware.report.log import terminal
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings.rules import at_least, check_all

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live
    from rich.text import Text

_REFRESH_SECONDS = 0.1
_PLAIN_SECONDS = 60.0
_RATE_SECONDS = 5.0
_SHOWN = {
    "episodes": ("episodes ", as_text, ""),
    "return": ("return ", "{:z,.1f}".format, "bold cyan"),
    "eval_return": ("eval ", "{:z,.1f}".format, "bold yellow"),
    "loss": ("loss ", "{:.3g}".format, ""),
    "epsilon": ("epsilon ", "{:.2f}".format, ""),
    "memory_mb": ("", "{:,.0f} MB".format, ""),
}
"""The label, the format and the style of each metric on the line."""
_DISPENSABLE = ("title", "epsilon", "memory_mb", "episodes", "loss", "rate", "return", "time")
"""The parts that are omitted from a line that is too short, in this order."""


def progress(
    *,
    max_env_steps: int | None = None,
    target: float | None = None,
    title: str = "",
    clock: Clock = SYSTEM_CLOCK,
) -> Middleware:
    """Show the progress of the run in a live line.

    On a terminal it is one line, updated ten times per second: env steps, including those of a
    population's evaluations, their rate, the mean return, the last evaluation, the loss, epsilon,
    the memory of `throughput`, and the remaining time. Values that do not fit into the width are
    omitted. Elsewhere it prints one line per minute. The last line remains.

    Context:
        reads: env_step, eval_steps, metrics

    Args:
        max_env_steps: The maximum of env steps; without it there is no bar.
        target: The target return, shown beside the evaluation.
        title: A short name of the run.
        clock: The clock of rates and periods.

    Raises:
        ConfigError: A setting is out of range.
    """
    check_all(at_least(1, max_env_steps=max_env_steps) if max_env_steps is not None else [])
    return _Progress(max_env_steps, target, title, clock)


class _Progress:
    __name__ = "progress"

    def __init__(
        self, max_env_steps: int | None, target: float | None, title: str, clock: Clock
    ) -> None:
        self._max = max_env_steps
        self._target = target
        self._title = title
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque()
        """Times, and the env steps by then."""
        self._live: Live | None = None
        self._latest: dict[str, Any] = {}
        self._env_step = 0
        self._started = self._shown_at = clock.now()
        self._steps_per_second = 0.0
        self._stepped = self._ended = False

    def __enter__(self) -> Self:
        from rich.live import Live

        self._started = self._shown_at = self._clock.now()
        self._stepped = self._ended = False
        if terminal().is_terminal:
            self._live = Live(self, console=terminal(), auto_refresh=False)
            self._live.start()
        return self

    def __call__(self, ctx: Context) -> None:
        self._stepped = True
        self._latest.update(ctx.metrics)
        self._env_step = spent(ctx)  # as the maximum of env steps is counted
        now = self._clock.now()
        if not self._marks:
            self._marks.append((now, self._env_step))
        pause = _PLAIN_SECONDS if self._live is None else _REFRESH_SECONDS
        if now - self._shown_at >= pause:
            self._show()

    def __exit__(self, *error: object) -> None:
        self._ended = True
        try:
            if self._stepped:
                self._show()
        finally:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _show(self) -> None:
        self._shown_at = now = self._clock.now()
        self._marks.append((now, self._env_step))
        while len(self._marks) > 2 and now - self._marks[1][0] >= _RATE_SECONDS:
            self._marks.popleft()
        then, before = self._marks[0]
        self._steps_per_second = (self._env_step - before) / (now - then) if now > then else 0.0
        if self._live is not None:
            self._live.refresh()
        else:
            terminal().print(self._line(10_000, bar=False), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Room for the ^C of a terminal, which would otherwise wrap and shift the line.
        yield self._line(options.max_width - 3, bar=True)

    def _line(self, width: int, *, bar: bool) -> Text:
        """Join the parts that fit into the width; `_DISPENSABLE` parts are omitted first."""
        from rich.text import Text

        parts = self._parts()
        for name in _DISPENSABLE:
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

        parts = {"title": Text(self._title)} if self._title else {}
        most = "" if self._max is None else f"/{self._max:,}"
        parts["env_step"] = Text.assemble(
            (f"{self._env_step:,}", "bold"), (f"{most} env steps", "dim")
        )
        parts["rate"] = Text(f"{self._steps_per_second:,.0f} steps/s")
        for name, (label, text, style) in _SHOWN.items():
            if name not in self._latest:
                continue
            value, after = number(name, self._latest[name]), ""
            if name == "eval_return" and self._target is not None:
                after = f"/{as_text(self._target)}"
                style = "bold green" if value >= self._target else style
            parts[name] = Text.assemble((label, "dim"), (text(value), style), (after, "dim"))
        parts["time"] = Text(as_clock(self._clock.now() - self._started))
        if self._max is not None and self._steps_per_second > 0 and not self._ended:
            left = max(0, self._max - self._env_step) / self._steps_per_second
            parts["time"].append(f", at most {as_clock(left)} left", "dim")
        return parts


def _bar(share: float, width: int) -> Text:
    from rich.text import Text

    full = round(min(max(share, 0.0), 1.0) * width)
    return Text.assemble(("━" * full, "green"), ("━" * (width - full), "bright_black"))
