"""Keep a copy of the best agent of a population."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ding_lite.evolution.agent import Agent
from ding_lite.evolution.population import Population
from ding_lite.middleware.checkpoint import not_finite
from ding_lite.middleware.keep_best import save_evaluated
from ding_lite.runtime.context import Context


def keep_best_agent(population: Population, directory: str | os.PathLike[str]) -> KeepBestAgent:
    """Copy the best agent, and save its policy, when an evaluation returns more than any before.

    What lives on goes on learning, and may become worse again. Place it behind
    `evaluate_population`; `agent` of what is returned is the copy. The policy is saved as
    `keep_best` would.

    Context:
        reads: env_step, eval_value, total_step, train_iter

    Args:
        population: The agents that are evaluated.
        directory: Made with the first evaluation, if need be.

    Raises:
        NonFiniteError: In a step: the policy is broken, and was not saved.

    Example:
        >>> from ding_lite import Task
        >>> from ding_lite.evolution import Population
        >>> from ding_lite.rl import DQN, make_envs
        >>> population = Population.of(DQN, make_envs("CartPole-v1", 1).spec, size=3)
        >>> best_agent = keep_best_agent(population, "runs/x/best")
        >>> _ = Task().use(best_agent)
        >>> best_agent.agent is population.best
        True
    """
    return KeepBestAgent(population, Path(directory))


class KeepBestAgent:
    """The middleware that `keep_best_agent` makes, with the same arguments."""

    __name__ = "keep_best_agent"

    def __init__(self, population: Population, directory: Path) -> None:
        """Begin with the best of a population that was not evaluated yet."""
        self.population = population
        self._directory = directory
        self._value = -math.inf
        self._agent: Agent | None = None
        self._known = not_finite(population[0].policy.state_dict())

    @property
    def agent(self) -> Agent:
        """The copy; before the first evaluation the population's own best."""
        return self.population.best if self._agent is None else self._agent

    def __call__(self, ctx: Context) -> None:
        """Compare the newest evaluation with the best one so far."""
        if "eval_value" not in ctx or not ctx.eval_value > self._value:
            return
        best = self.population.best
        save_evaluated(best.policy, self._directory, ctx, known=self._known)
        self._value, self._agent = float(ctx.eval_value), best.clone()

    def state_dict(self) -> dict[str, Any]:
        """Return the copy, and what the next evaluation must exceed; None before the first."""
        if self._agent is None:
            return {"value": None, "agent": None}
        return {"value": self._value, "agent": self._agent.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self._value, self._agent = -math.inf, None
        if state["agent"] is not None:
            self._value = float(state["value"])
            self._agent = self.population[0].clone()
            self._agent.load_state_dict(state["agent"])
