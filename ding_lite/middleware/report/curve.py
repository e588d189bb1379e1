"""Draw the learning curve."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.io.text import as_text
from ding_lite.middleware.checks import number
from ding_lite.middleware.report.reporter import ending, is_of_files
from ding_lite.middleware.report.style import (
    BLUE,
    ORANGE,
    add_legend,
    add_titles,
    begin_picture,
    draw_target,
    picture_path,
    save_picture,
    style_axes,
    style_small_axes,
)
from ding_lite.middleware.report.throughput import STAGE_SECONDS
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings.rules import check_all, positive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatArray = npt.NDArray[np.float64]

_RETURNS = ("episode_return", "return", "eval_return")
_BELOW = {"loss": "loss", "steps_per_s": "env steps per second", "memory_mb": "memory, MB"}
_STAGES_SHOWN, _OF_EVALUATIONS = 4, "evaluate"
_FEW = 200
"""Maximum number of points of a small curve; more points are averaged."""
_MOST = 16_384
"""Maximum number of points in memory: each episode of a long run would add some."""


def curve(
    path: str | os.PathLike[str],
    *,
    target: float | None = None,
    title: str = "Learning curve",
    redraw: float = 30.0,
    clock: Clock = SYSTEM_CLOCK,
) -> Middleware:
    """Draw the learning curve: returns and evaluations over env steps.

    Smaller charts below it show the loss, and the env steps per second and the memory of
    `throughput`, if the run has these metrics. A line above it shows the time shares of stages, if
    there are metrics named `seconds/<stage>`, as in `ding-lite train`. The curve is drawn
    periodically and when the run ends, also by an error.

    Context:
        reads: env_step, metrics, total_step

    Args:
        path: The picture, `.png`, `.svg` or `.pdf`.
        target: The target return, drawn as a line.
        title: The title of the picture.
        redraw: Seconds from one drawing to the next; a drawing takes about half a second.
        clock: The clock of these seconds.

    Raises:
        ConfigError: The suffix of the picture is unknown, or a setting is out of range.
    """
    check_all(positive(redraw=redraw))
    return Curve(picture_path(path), target, title, redraw, clock)


class _Series:
    """One metric over env steps, as pairs of doubles.

    Of a long series every second point is dropped, again and again; the newest is always there.
    """

    def __init__(self) -> None:
        self._x, self._y = array("d"), array("d")
        self._period, self._count = 1, 0

    def __len__(self) -> int:
        return len(self._x)

    def add(self, x: float, y: float) -> None:
        if self._count % self._period:
            self._x[-1], self._y[-1] = x, y
        else:
            if len(self._x) >= _MOST:
                self._x, self._y, self._period = self._x[::2], self._y[::2], 2 * self._period
            self._x.append(x)
            self._y.append(y)
        self._count += 1

    def state(self) -> dict[str, Any]:
        count = {"period": self._period, "count": self._count}
        return {"x": np.array(self._x), "y": np.array(self._y), **count}

    def load(self, state: Mapping[str, Any]) -> None:
        self._x = array("d", state["x"].tobytes())
        self._y = array("d", state["y"].tobytes())
        self._period, self._count = state["period"], state["count"]

    def points(self, at_most: int | None = None) -> tuple[FloatArray, FloatArray]:
        """Copy the points, or `at_most` of them at regular intervals."""
        x, y = np.array(self._x), np.array(self._y)
        if at_most is not None and len(x) > at_most:
            chosen = np.linspace(0, len(x) - 1, at_most).astype(int)
            x, y = x[chosen], y[chosen]
        return x, y

    def means(self, at_most: int) -> tuple[FloatArray, FloatArray]:
        """Copy the points, or the means of `at_most` groups of adjacent points."""
        x, y = np.array(self._x), np.array(self._y)
        if len(x) <= at_most:
            return x, y
        starts = np.linspace(0, len(x), at_most, endpoint=False).astype(int)
        counts = np.diff(starts, append=len(x))
        return np.add.reduceat(x, starts) / counts, np.add.reduceat(y, starts) / counts


@dataclass(eq=False)
class Curve:
    """The middleware that `curve` makes."""

    __name__ = "curve"
    optional_state = True

    _path: Path
    _target: float | None
    _title: str
    _redraw: float
    _clock: Clock
    _drawn_at: float = 0.0
    _series: dict[str, _Series] = field(
        default_factory=lambda: {name: _Series() for name in (*_RETURNS, *_BELOW)}
    )
    _seconds: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)  # once: a run may be moved meanwhile
        self._drawn_at = self._clock.now()
        return self

    def __call__(self, ctx: Context) -> None:
        metrics = ctx.metrics
        # Reading a loss waits for the device, so it is not read in every step.
        is_time = "episode_return" in metrics or "memory_mb" in metrics
        for name in self._series if is_time else _RETURNS:
            if name in metrics:
                x = ctx.get("env_step", ctx.total_step + 1)
                self._series[name].add(x, number(name, metrics[name]))
        for name in metrics:
            if name.startswith(STAGE_SECONDS):
                self._seconds[name.removeprefix(STAGE_SECONDS)] = number(name, metrics[name])
        if self._clock.now() - self._drawn_at >= self._redraw:
            self._draw()

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        with ending("curve", (error,)):
            if not is_of_files((error,)):
                self._draw()

    def state_dict(self) -> dict[str, Any]:
        return {name: series.state() for name, series in self._series.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, series in self._series.items():
            series.load(state[name])

    def _draw(self) -> None:
        if any(len(self._series[name]) for name in _RETURNS):
            below = [_sum_up(self._series, self._target), _format_stages(self._seconds)]
            text = "; ".join(filter(None, below))
            _draw_curve(self._path, self._series, self._target, title=self._title, text=text)
        self._drawn_at = self._clock.now()


def _draw_curve(
    path: Path, series: Mapping[str, _Series], target: float | None, *, title: str, text: str
) -> None:
    below = {label: series[name] for name, label in _BELOW.items() if len(series[name])}
    figure, axes, few = begin_picture(num_below=len(below))
    for small, (label, one) in zip(few, below.items(), strict=True):
        small.plot(*one.means(at_most=_FEW), color=BLUE, linewidth=1.2)
        style_small_axes(small, title=label)
    _draw_series(axes, series)
    style_axes(axes, y_label="return of an episode")
    if target is not None:
        draw_target(axes, target)
    add_titles(figure, title, text)
    add_legend(axes)
    save_picture(figure, path)


def _draw_series(axes: Axes, series: Mapping[str, _Series]) -> None:
    if len(series["episode_return"]):
        x, y = series["episode_return"].points(at_most=2000)
        axes.scatter(x, y, s=9, color=BLUE, alpha=0.28, linewidths=0, label="episode", zorder=2)
    if len(series["return"]):
        x, y = series["return"].points(at_most=2000)
        axes.plot(x, y, color=BLUE, linewidth=2.2, label="mean of 20 episodes", zorder=3)
    if len(series["eval_return"]):
        x, y = series["eval_return"].points(at_most=2000)
        few = len(x) <= 40
        axes.plot(
            x,
            y,
            color=ORANGE,
            linewidth=1.6 if few else 1.2,
            marker="o",
            markersize=6 if few else 3.5,
            markeredgecolor="white",
            markeredgewidth=1.2 if few else 0.5,
            label="greedy evaluation",
            zorder=4,
        )


def _sum_up(series: Mapping[str, _Series], target: float | None) -> str:
    name = "eval_return" if len(series["eval_return"]) else "return"
    x, y = series[name].points()
    if not len(y):
        return ""
    what = "evaluation" if name == "eval_return" else "mean return"
    text = f"last {what} {as_text(float(y[-1]))} after {int(x[-1]):,} env steps"
    return f"target reached: {text}" if target is not None and y[-1] >= target else text


def _format_stages(seconds: Mapping[str, float]) -> str:
    total = sum(seconds.values())
    largest = sorted(seconds, key=lambda name: -seconds[name])
    shown = {*largest[:_STAGES_SHOWN], *(n for n in largest if n.startswith(_OF_EVALUATIONS))}
    shares = {n: round(100 * seconds[n] / total) for n in largest if n in shown} if total else {}
    return ", ".join(
        f"{n} {share} %" for n, share in shares.items() if share or n.startswith(_OF_EVALUATIONS)
    )
