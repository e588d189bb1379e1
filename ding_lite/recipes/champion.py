"""The agent of the best evaluation, and what is said of each generation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ding_lite.evolution.agent import Agent
from ding_lite.evolution.population import Population
from ding_lite.middleware.best import save_evaluated
from ding_lite.middleware.report import spell, terminal
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware


class Champion:
    """Keeps a copy of the agent whose evaluation was the best, and saves its policy.

    Stands behind `evaluate_population` in a pipeline: what lives on goes on learning, and may
    become worse again.

    Args:
        population: Whose.
        directory: Where its policy is saved, as `keep_best` would.
    """

    __name__ = "champion"

    def __init__(self, population: Population, directory: Path) -> None:
        """Begin with the best of a population that was not evaluated yet."""
        self.population = population
        self._directory = directory
        self._value = -math.inf
        self._agent: Agent | None = None

    @property
    def agent(self) -> Agent:
        """The copy; before the first evaluation the population's own best."""
        return self.population.best if self._agent is None else self._agent

    def __call__(self, ctx: Context) -> None:
        """Compare the newest evaluation with the best one so far."""
        if "eval_value" not in ctx or not ctx.eval_value > self._value:
            return
        best = self.population.best
        save_evaluated(best.policy, self._directory, ctx)
        self._value, self._agent = float(ctx.eval_value), best.clone()

    def state_dict(self) -> dict[str, Any]:
        """Return the copy, and what the next evaluation must exceed; None before the first."""
        if self._agent is None:
            return {"value": None, "agent": None}
        return {"value": self._value, "agent": self._agent.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._value, self._agent = -math.inf, None
        if state["agent"] is not None:
            self._value = float(state["value"])
            self._agent = self.population[0].clone()
            self._agent.load_state_dict(state["agent"])


def tell_generations(population: Population) -> Middleware:
    """Make what shows each generation to a person, once it is over."""
    shown = population.generation

    def tell(ctx: Context) -> None:
        nonlocal shown
        if population.generation == shown:
            return
        shown = population.generation
        for line in lines_of(population):
            terminal().print(line, markup=False, soft_wrap=True)

    return tell


def lines_of(population: Population) -> list[str]:
    """Say how the agents of the last generation did, and what each of them becomes."""
    lives = population.lives[-len(population) :]
    worth = [life.fitness for life in lives if life.fitness is not None]
    mean = sum(worth) / len(worth) if worth else math.nan
    best = max(worth, default=math.nan)
    rows = [("agent", "fitness", *lives[0].hyperparameters, "hidden", "becomes")]
    for life, agent in zip(lives, population, strict=True):
        birth = agent.birth
        became = "stays" if birth.id == life.id else f"{birth.mutation} (of agent {birth.parent})"
        values = [str(v) if isinstance(v, str) else spell(v) for v in life.hyperparameters.values()]
        hidden = "-".join(map(str, life.hidden or ()))
        fitness = "broken" if life.fitness is None else spell(life.fitness)
        rows.append((str(life.id), fitness, *values, hidden, became))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(c.rjust(w) for c, w in zip(row[:-1], widths, strict=False)) for row in rows]
    told = [f"{text}  {row[-1]}" for text, row in zip(table, rows, strict=True)]
    first = f"generation {lives[0].generation}: best {spell(best)}, mean {spell(mean)}"
    return [first, *(f"  {line}" for line in told)]
