"""Evaluate all agents of a population at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from ding_lite.errors import NonFiniteError
from ding_lite.evolution.agent import Agent
from ding_lite.evolution.batched.acting import ActTogether
from ding_lite.evolution.population import Population
from ding_lite.middleware.checks import Period, for_all_envs
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.evaluation import PlayedByEach, is_below, play_each
from ding_lite.rl.memory import memory_of
from ding_lite.runtime.context import Context

_AT_ONCE = 6
"""Number of fresh episodes, rounded up to whole envs, between two checks of their mean."""


@dataclass
class EvaluatePopulation:
    """Evaluates every agent; the middleware that `evaluate` makes for a population.

    All agents play at the same time: an env that has ended an episode begins the next one, of any
    agent. Fresh episodes are played in small groups, until their mean is below the goal by more
    than its standard error.
    """

    population: Population
    envs: Envs
    period: Period
    goal: float
    episodes: int
    confirm: int
    sure_envs: Envs
    max_env_steps: int | None

    __name__ = "evaluate_population"  # the name of its state in checkpoints
    optional_state = True

    def __call__(self, ctx: Context) -> None:
        ctx.setdefault("eval_steps", 0)
        ctx.keep("eval_steps")
        if not self.period.is_due(ctx):
            return
        while healthy := [agent for agent in self.population if not agent.rests]:
            try:
                values = self._play(ctx, healthy, self.envs, self.episodes).mean_returns
            except NonFiniteError as error:
                set_aside_broken(healthy, self.envs, error)
                continue
            for agent, value in zip(healthy, values, strict=True):
                agent.note_evaluation(value)
            ctx.metrics["fitness_mean"] = sum(values) / len(values)
            break
        self.judge_best(ctx)

    def judge_best(self, ctx: Context) -> None:
        """Report the best agent's fitness, or its fresh episodes if it reaches the goal."""
        goal, (value, returns) = self.goal, self._value_of_best(ctx)
        is_known = value < goal or len(returns) > 0 or not self.confirm
        if returns:
            value = fmean(returns)

        if is_known:
            ctx.eval_value = value
        ctx.metrics["eval_return"] = value
        ctx.metrics["eval_steps"] = ctx.eval_steps
        if value >= goal and len(returns) >= self.confirm:
            ctx.finish = True

    def _play(
        self, ctx: Context, agents: Sequence[Agent], where: Envs, episodes: int
    ) -> PlayedByEach:
        act = ActTogether(agents)
        played = play_each(act, where, episodes=[episodes] * len(agents), reset=act.reset)
        ctx.eval_steps += played.env_steps
        return played

    def _value_of_best(self, ctx: Context) -> tuple[float, list[float]]:
        """Return the fitness of the best agent, and fresh returns of it if it reaches the goal."""
        while True:
            best = self.population.best
            value = best.mean_fitness(1)
            try:
                return value, self._fresh_returns(ctx, best) if value >= self.goal else []
            except NonFiniteError as error:
                set_aside_broken([best], self.sure_envs, error)

    def _fresh_returns(self, ctx: Context, agent: Agent) -> list[float]:
        envs, returns = self.sure_envs, list[float]()
        at_once = for_all_envs(_AT_ONCE, envs)
        most = longest_evaluation(envs, at_once)
        while len(returns) < self.confirm and _has_left(ctx, self.max_env_steps, most):
            count = min(at_once, self.confirm - len(returns))
            returns += self._play(ctx, [agent], envs, count).returns[0]
            if is_below(self.goal, returns):
                break
        return returns

    def state_dict(self) -> dict[str, Any]:
        return self.period.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.period.load_state_dict(state)


def set_aside_broken(agents: Sequence[Agent], envs: Envs, error: NonFiniteError) -> None:
    """Set aside the agents with actions that are not finite; without any, raise the error."""
    obs, broken = envs.obs, []
    for agent in agents:
        memory = memory_of(agent, len(obs))
        more = {} if memory is None else {"memory": memory}
        if not np.isfinite(agent.act(obs, explore=False, **more)).all():
            broken.append(agent)
    if not broken:
        raise error
    for agent in broken:
        agent.set_aside(error)


def longest_evaluation(envs: Envs, episodes: int) -> int | None:
    """Return the env steps of `episodes` of maximum length; None without a time limit."""
    limit = envs.spec.max_episode_steps
    return None if limit is None else for_all_envs(episodes, envs) * limit


def _has_left(ctx: Context, max_env_steps: int | None, most: int | None) -> bool:
    if max_env_steps is None:
        return True
    return bool(ctx.get("env_step", 0) + ctx.eval_steps + (most or 0) <= max_env_steps)
