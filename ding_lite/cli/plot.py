"""`ding-lite plot`: draw the learning curves of runs in one picture, and print their returns."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from itertools import cycle, product
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from ding_lite.cli.tables import print_table
from ding_lite.errors import ConfigError, did_you_mean
from ding_lite.io.files import named, why
from ding_lite.io.text import as_text
from ding_lite.log import configure
from ding_lite.middleware.report.style import (
    COLORS,
    add_legend,
    add_titles,
    begin_picture,
    draw_target,
    picture_path,
    save_picture,
    style_axes,
)
from ding_lite.recipes.runs.results import (
    Result,
    RunGroup,
    find_results,
    group_results,
    shortened,
    spread_of,
    title_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Y_LABELS = {
    "eval_return": "return of greedy episodes",
    "return": "mean return of the last 20 episodes",
    "steps_per_s": "env steps per second",
    "memory_mb": "memory, MB",
}
_WITH_TARGET = ("eval_return", "return")
_LINE_STYLES = ("-", "--", ":", "-.")
"""The styles of curves, as many as there are colours to each."""

logger = logging.getLogger(__name__)


def plot_runs(options: argparse.Namespace) -> None:
    configure("warning")
    path = picture_path(options.out)
    results = find_results(options.runs)
    if options.metric is None:
        results = _with_a_return(results)
    metric = _choose_metric(results, options.metric)
    groups = group_results(results)

    figure, axes, _ = begin_picture()
    looks = product(_LINE_STYLES, COLORS)
    for group, (style, color) in zip(groups, cycle(looks), strict=False):
        _draw_group(axes, group, metric, color, style)
    style_axes(axes, y_label=_Y_LABELS.get(metric, shortened(metric)))
    targets = {result.target for result in results}
    if metric in _WITH_TARGET and len(targets) == 1 and (target := targets.pop()) is not None:
        draw_target(axes, target)
    add_titles(figure, title_of(groups), _below(groups))
    if len(groups) > 1:
        add_legend(axes)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_picture(figure, path)
    except OSError as error:
        raise ConfigError(
            f"The picture cannot be written: {why(error)}. Name another file with `--out`."
        ) from error

    _print_results(groups, metric)
    if options.metric is None and metric == "return":
        print(
            "\nThe returns are of training episodes, which explore: not all runs have evaluations."
        )
    print(f"\nDrawn in {path}")


def _with_a_return(results: list[Result]) -> list[Result]:
    """Leave out runs in which no episode has ended yet, with a warning, unless all are such."""
    found = [result for result in results if any(map(result.has, _WITH_TARGET))]
    for result in results if found else ():
        if result not in found:
            logger.warning("%s has no finished episode yet, and is left out", result.directory)
    return found or results


def _choose_metric(results: Sequence[Result], wanted: str | None) -> str:
    names = {name: None for result in results for row in result.rows for name in row}
    candidates = _WITH_TARGET if wanted is None else (wanted,)
    for name in candidates:
        if all(result.has(name) for result in results):
            return name
    name = candidates[-1]
    lacking = [str(r.directory) for r in results if not r.has(name)]
    hint = "" if name in names else did_you_mean(name, names)
    raise ConfigError(
        f"`{name}` is missing in {', '.join(lacking)}.{hint} Metrics of these runs are: "
        f"{', '.join(names)}."
    )


def _draw_group(axes: Axes, group: RunGroup, metric: str, color: str, style: str) -> None:
    x, y = group.runs[0].points(metric)
    if len(group.runs) > 1:
        spread = spread_of(group.runs, metric)
        axes.fill_between(spread.x, spread.low, spread.high, color=color, alpha=0.14, linewidth=0)
        for run in group.runs:
            axes.plot(*run.points(metric), color=color, linewidth=0.8, alpha=0.45)
        x, y = spread.x, spread.mean
    axes.plot(x, y, style, color=color, linewidth=2.2, label=group.name, zorder=4)


def _below(groups: Sequence[RunGroup]) -> str:
    most = max(len(group.runs) for group in groups)
    if most == 1:
        return "one run each" if len(groups) > 1 else ""
    runs = groups[0].size if len(groups) == 1 else "the runs of a curve"
    return f"mean of {runs}; the band goes from the least to the greatest"


def _print_results(groups: Sequence[RunGroup], metric: str) -> None:
    of_metric = f"last {metric}", f"best {metric}"
    headings = ("run", "seed", "env steps", "episodes", *of_metric, "final return", "time")
    rows: list[tuple[str, ...]] = []
    bold: list[bool] = []
    for group in groups:
        for run in group.runs:
            rows.append(_row(run, metric))
            bold.append(False)
        if len(group.runs) > 1:
            rows.append(_summary(group, metric))
            bold.append(True)
    print_table(headings, rows, bold=bold)


def _row(run: Result, metric: str) -> tuple[str, ...]:
    last, (x, y) = run.rows[-1], run.points(metric)
    is_older = metric == "eval_return" and int(x[-1]) != last["env_step"]
    return (
        named(run.directory),
        "" if run.seed is None else str(run.seed),
        as_text(run.env_steps or 0),
        as_text(last["episodes"]) if last.get("episodes") is not None else "",
        as_text(float(y[-1])) + (f" (at {int(x[-1]):,})" if is_older else ""),
        as_text(float(y.max())),
        "" if run.final is None else as_text(run.final),
        f"{run.wall_s or 0.0:,.1f} s",
    )


def _summary(group: RunGroup, metric: str) -> tuple[str, ...]:
    curves = [run.points(metric)[1] for run in group.runs]
    last, best = [float(y[-1]) for y in curves], [float(y.max()) for y in curves]
    finals = [run.final for run in group.runs if run.final is not None]
    of = f" (of {len(finals)})" if len(finals) < len(group.runs) else ""
    steps = [float(run.env_steps or 0) for run in group.runs]
    return (
        f"{group.label}, mean of {len(group.runs)}",
        "",
        as_text(round(fmean(steps))),
        "",
        f"{as_text(fmean(last))} ± {as_text(stdev(last))}",
        f"{as_text(fmean(best))} ± {as_text(stdev(best))}",
        f"{as_text(fmean(finals))} ± {as_text(stdev(finals))}{of}" if len(finals) > 1 else "",
        "",
    )
