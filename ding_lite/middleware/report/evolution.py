"""Show a population: its agents on the terminal, and pictures of its history."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ding_lite.evolution.population import Life, Population
from ding_lite.io.text import as_text
from ding_lite.middleware.report.log import terminal
from ding_lite.middleware.report.style import (
    BLUE,
    COLORS,
    GREY,
    INK,
    ORANGE,
    add_legend,
    add_titles,
    begin_picture,
    draw_target,
    save_picture,
    style_axes,
)
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FITNESS, HYPERPARAMETERS, FAMILY = "fitness.png", "hyperparameters.png", "family.png"


def draw_lives(
    lives: Sequence[Life],
    directory: str | os.PathLike[str],
    *,
    title: str,
    target: float | None = None,
) -> list[Path]:
    """Draw fitness.png, hyperparameters.png and family.png into a directory; return their paths.

    Nothing is drawn before the end of the first generation.
    """
    if not any(life.fitness is not None for life in lives):
        return []
    folder = Path(directory)
    _draw_fitness(lives, folder / FITNESS, title=title, target=target)
    _draw_family(lives, folder / FAMILY, title=title)
    pictures = [folder / FITNESS, folder / FAMILY]
    if lives[0].hyperparameters:
        _draw_hyperparameters(lives, folder / HYPERPARAMETERS, title=title)
        pictures.append(folder / HYPERPARAMETERS)
    return pictures


def _by_generation(lives: Sequence[Life]) -> dict[int, list[Life]]:
    found: dict[int, list[Life]] = {}
    for life in lives:
        if life.fitness is not None:
            found.setdefault(life.generation, []).append(life)
    return found


def _draw_fitness(lives: Sequence[Life], path: Path, *, title: str, target: float | None) -> None:
    figure, axes, _ = begin_picture()
    generations = _by_generation(lives)
    x = list(generations)
    worth = [[life.fitness or 0.0 for life in generations[number]] for number in x]
    for number, values in zip(x, worth, strict=True):
        label = "agent" if number == x[0] else None
        axes.scatter([number] * len(values), values, s=16, color=BLUE, alpha=0.4, label=label)
    means = [sum(values) / len(values) for values in worth]
    axes.plot(x, means, color=BLUE, linewidth=2.0, label="mean", zorder=3)
    axes.plot(x, [max(values) for values in worth], color=ORANGE, linewidth=2.0, label="best")
    style_axes(axes, y_label="fitness: mean return of an evaluation")
    _count_generations(axes, x)
    if target is not None:
        draw_target(axes, target)
    best = max(max(values) for values in worth)
    add_titles(figure, title, f"best {as_text(best)} in {len(x)} generations")
    add_legend(axes)
    save_picture(figure, path)


def _draw_hyperparameters(lives: Sequence[Life], path: Path, *, title: str) -> None:
    from matplotlib.figure import Figure

    names = list(lives[0].hyperparameters)
    figure = Figure(figsize=(8.0, 1.2 + 2.1 * len(names)), dpi=160, facecolor="white")
    figure.subplots_adjust(left=0.13, right=0.97, top=1 - 0.75 / (1.2 + 2.1 * len(names)))
    generations = _by_generation(lives)
    for index, name in enumerate(names):
        axes = figure.add_subplot(len(names), 1, index + 1)
        _draw_values(axes, generations, name)
        _count_generations(axes, list(generations))
        if index + 1 < len(names):
            axes.set_xlabel("")
    figure.text(0.022, 1 - 0.42 / figure.get_figheight(), title, fontsize=15, fontweight="bold")
    save_picture(figure, path)


def _draw_values(axes: Axes, generations: dict[int, list[Life]], name: str) -> None:
    all_values = [life.hyperparameters[name] for lives in generations.values() for life in lives]
    are_numbers = all(isinstance(value, float | int) for value in all_values)
    numbers = [value for value in all_values if isinstance(value, float)]
    for number, lives in generations.items():
        best = max(lives, key=lambda life: life.fitness or 0.0)
        values = [life.hyperparameters[name] for life in lives]
        drawn: list[Any] = values if are_numbers else [*map(str, values)]
        axes.scatter([number] * len(values), drawn, s=16, color=BLUE, alpha=0.4)
        axes.scatter([number], [drawn[lives.index(best)]], s=26, color=ORANGE)
    if are_numbers and numbers and min(numbers) > 0.0 and max(numbers) > 10.0 * min(numbers):
        axes.set_yscale("log")
    axes.set_ylabel(name, fontsize=11, color=INK)
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=9, length=0)
    axes.grid(axis="y", color="#e4e7eb", linewidth=1.0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _count_generations(axes: Axes, numbers: Sequence[int]) -> None:
    """Set up the horizontal axis of generations, with a margin on both sides."""
    from matplotlib.ticker import MaxNLocator

    room = 0.02 * len(numbers) + 0.05
    axes.set_xlabel("generation", fontsize=11, color=INK, labelpad=6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    axes.set_xlim(min(numbers) - room, max(numbers) + room)


def _draw_family(lives: Sequence[Life], path: Path, *, title: str) -> None:
    """Draw agents by place and generation, with lines from parents to children."""
    figure, axes, _ = begin_picture()
    generations = _by_generation(lives)
    place_of: dict[tuple[int, int], int] = {
        (life.generation, life.id): life.place for life in lives
    }
    family_of = families({life.id: life.parent for life in lives})
    for number, members in generations.items():
        best = max(members, key=lambda life: life.fitness or 0.0)
        for life in members:
            color = COLORS[family_of[life.id] % len(COLORS)]
            before = place_of.get((number - 1, life.id))
            if before is None and life.parent is not None:
                before = place_of.get((number - 1, life.parent))
            if before is not None:
                style = "-" if life.mutation in ("first", "copy") else "--"
                axes.plot([number - 1, number], [before, life.place], style, color=color, lw=1.2)
            size = 90 if life is best else 36
            axes.scatter([number], [life.place], s=size, color=color, zorder=3)
    style_axes(axes, y_label="place in the population")
    _count_generations(axes, list(generations))
    axes.set_ylim(-0.5, max(life.place for life in lives) + 0.5)
    axes.invert_yaxis()
    below = "a color a family; large: the best of a generation; dashed: something was mutated"
    add_titles(figure, title, below)
    save_picture(figure, path)


def families(parents: Mapping[int, int | None]) -> dict[int, int]:
    """Number the families of agents: those with the same first ancestor."""
    first: dict[int, int] = {}
    for number in parents:
        line: set[int] = set()
        ancestor, parent = number, parents.get(number)
        while parent is not None and ancestor not in line and ancestor not in first:
            line.add(ancestor)  # a damaged file may contain a cycle
            ancestor, parent = parent, parents.get(parent)
        first |= dict.fromkeys(line | {number}, first.get(ancestor, ancestor))
    places = {number: k for k, number in enumerate(sorted({first[number] for number in parents}))}
    return {number: places[first[number]] for number in parents}


def show_generations(population: Population) -> Middleware:
    """Print each generation on the terminal when it is over."""
    shown = population.generation

    def show(ctx: Context) -> None:
        nonlocal shown
        if population.generation == shown:
            return
        shown = population.generation
        for line in lines_of(population):
            terminal().print(line, markup=False, soft_wrap=True)

    return show


def lines_of(population: Population) -> list[str]:
    """Describe the fitness of each agent of the last generation, and what it has become."""
    lives = population.lives[-len(population) :]
    worth = [life.fitness for life in lives if life.fitness is not None]
    mean = sum(worth) / len(worth) if worth else math.nan
    best = max(worth, default=math.nan)
    rows = [("agent", "fitness", *lives[0].hyperparameters, "hidden", "becomes")]
    for life, agent in zip(lives, population, strict=True):
        birth = agent.birth
        became = "stays" if birth.id == life.id else f"{birth.mutation} (of agent {birth.parent})"
        values = [
            as_text(v) if isinstance(v, float | int) else str(v)
            for v in life.hyperparameters.values()
        ]
        hidden = "-".join(map(str, life.hidden or ()))
        fitness = "broken" if life.fitness is None else as_text(life.fitness)
        rows.append((str(life.id), fitness, *values, hidden, became))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(c.rjust(w) for c, w in zip(row[:-1], widths, strict=False)) for row in rows]
    lines = [f"{text}  {row[-1]}" for text, row in zip(table, rows, strict=True)]
    first = f"generation {lives[0].generation}: best {as_text(best)}, mean {as_text(mean)}"
    return [first, *(f"  {line}" for line in lines)]
