"""Show the agents of a population on the terminal."""

from __future__ import annotations

import math

from ding_lite.evolution.population import Population
from ding_lite.middleware.report.log import as_text, terminal
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware


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
