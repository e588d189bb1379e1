"""The common style of all pictures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ding_lite.errors import ConfigError
from ding_lite.io.files import replacing
from ding_lite.io.text import as_text, as_tick
from ding_lite.middleware.report.jsonl import file_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, BLUE, ORANGE, GREEN = "#1f2933", "#7b8794", "#2f6fde", "#e8590c", "#2b8a3e"
COLORS = (BLUE, ORANGE, GREEN, "#9c36b5", "#c92a2a", "#0c8599", "#a6740a", "#5c677d")
LARGEST = 1e150
"""The bound of drawn numbers, within which differences and ratios are finite."""
_LEFT = 0.022
_HEIGHT, _HEIGHT_BELOW = 4.5, 1.6
"""The heights of a picture and of the small charts below it, in inches."""


def picture_path(path: str | os.PathLike[str]) -> Path:
    file = file_path(path)
    if file.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(
            f"The picture {file} ends in {file.suffix!r}. Choose one of: .png, .svg, .pdf."
        )
    return file


def begin_picture(*, num_below: int = 0) -> tuple[Figure, Axes, list[Axes]]:
    """Make an empty picture with a row of `num_below` small charts below it."""
    from matplotlib.figure import Figure

    height = _HEIGHT + _HEIGHT_BELOW * bool(num_below)
    figure = Figure(figsize=(8.0, height), dpi=160, facecolor="white")
    top, bottom = 1 - 0.17 * _HEIGHT / height, 0.125 * _HEIGHT / height
    if not num_below:
        figure.subplots_adjust(left=0.108, right=0.97, top=top, bottom=bottom)
        return figure, figure.add_subplot(), []
    grid = figure.add_gridspec(
        2, num_below, left=0.108, right=0.97, top=top, bottom=0.07, hspace=0.48, wspace=0.3,
        height_ratios=(0.705 * _HEIGHT, 0.6 * _HEIGHT_BELOW),
    )  # fmt: skip
    below = [figure.add_subplot(grid[1, column]) for column in range(num_below)]
    return figure, figure.add_subplot(grid[0, :]), below


def style_small_axes(axes: Axes, *, title: str) -> None:
    style_axes(axes, y_label="")
    axes.set_xlabel("")
    axes.tick_params(labelsize=8, pad=3)
    axes.locator_params(nbins=4)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.08 * (high - low))
    axes.set_title(title, fontsize=9.5, color=INK, loc="left", pad=5)


def style_axes(axes: Axes, *, y_label: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlabel("env steps", fontsize=11, color=INK, labelpad=6)
    axes.set_ylabel(y_label, fontsize=11, color=INK, labelpad=6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: as_tick(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: as_tick(value)))
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=10, length=0, pad=6)
    axes.grid(axis="y", color="#e4e7eb", linewidth=1.0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#cbd2d9")
    axes.margins(x=0.02, y=0.05)
    if axes.dataLim.y0 >= 0:
        axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)


def draw_target(axes: Axes, target: float) -> None:
    """Draw the target as a line, unless it is too large to be drawn."""
    if not abs(target) < LARGEST:
        return
    low, high = axes.get_ylim()
    room = 0.09 * (max(high, target) - min(low, target))
    axes.set_ylim(min(low, target - room), max(high, target + room))
    axes.axhline(target, color=GREEN, linewidth=1.4, linestyle=(0, (5, 3)), zorder=1)
    axes.annotate(
        f"target {as_text(target)}",
        xy=(0.0, target),
        xycoords=("axes fraction", "data"),
        xytext=(6, 4),
        textcoords="offset points",
        fontsize=10,
        color=GREEN,
    )


def add_titles(figure: Figure, title: str, below: str) -> None:
    """Write the title and a line below it, in a font size that fits the width."""
    from_top = _HEIGHT / figure.get_figheight()
    room = (1 - 2 * _LEFT) * figure.bbox.width
    for words, down, size, weight, color in (
        (title, 0.075, 15.0, "bold", INK),
        (below, 0.128, 10.5, "normal", GREY),
    ):
        text = figure.text(_LEFT, 1 - down * from_top, words, fontweight=weight, color=color)
        text.set_parse_math(False)
        text.set_fontsize(size)
        text.set_fontsize(size * min(1.0, room / (text.get_window_extent().width or room)))


def add_legend(axes: Axes) -> None:
    """Draw the legend where it hides least: beside the axes if it has more than four curves."""
    legend = axes.legend(
        loc="best", frameon=True, framealpha=0.8, edgecolor="none", fontsize=10, labelcolor=INK
    )
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
    if len(legend.legend_handles) > 4:
        figure = axes.figure.figure
        before, sides = figure.get_figwidth(), figure.subplotpars
        after = before + legend.get_window_extent().width / figure.dpi
        figure.set_figwidth(after)
        figure.subplots_adjust(left=sides.left * before / after, right=sides.right * before / after)
        legend.set_loc("upper left")
        legend.set_bbox_to_anchor((1.0, 1.0))


def save_picture(figure: Figure, path: Path) -> None:
    """Write the picture to `path` atomically; names of runs and metrics are no formulas."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with replacing(path) as unfinished:
        figure.savefig(unfinished)
