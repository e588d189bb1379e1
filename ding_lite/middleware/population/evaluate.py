"""Evaluate all agents of a population at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ding_lite.evolution.acting import ActTogether
from ding_lite.evolution.agent import Agent
from ding_lite.evolution.population import Population
from ding_lite.middleware.checks import Period, check_fits
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.evaluation import PlayedByEach, is_below, play_each
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings import at_least, check_all

_AT_ONCE = 6
"""So many fresh episodes, or a few more, are played before it is asked whether to go on."""


def evaluate_population(  # noqa: PLR0913 - one of two periods
    population: Population,
    envs: Envs,
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
    stop_at: float | None = None,
    episodes: int | None = None,
    confirm: int = 20,
    confirm_envs: Envs | None = None,
    max_env_steps: int | None = None,
) -> Middleware:
    """Evaluate every agent by greedy episodes now and then; finish once the best is good enough.

    Their mean return becomes the agent's fitness. All agents play at once: an env that has
    ended an episode takes up the next one, of whichever agent. The best of many noisy evaluations
    flatters, so one that reaches `stop_at` is repeated with `confirm` fresh episodes, and only
    their mean ends the run. They are played some at a time, and no more of them once their mean
    is below `stop_at` by more than its standard error. What evaluations cost is counted, too, in
    `eval_steps`.

    Context:
        reads: env_step (with max_env_steps, or every_env_steps), eval_steps, total_step
        writes: eval_steps, eval_value, finish, metrics (eval_return, eval_steps, fitness_mean)
        keeps: eval_steps

    Args:
        population: Its agents act without exploration.
        envs: Envs of their own. While the last episodes end some are idle, and their env steps
            count as well: fewer envs than episodes waste less.
        every: Steps of the pipeline from one evaluation to the next; that of `evolve`, or a part of
            it.
        every_env_steps: The same in env steps, as they are on the ctx, in place of `every`.
        stop_at: The mean return of one agent at which `ctx.finish` is set; never by default.
        episodes: Episodes for each agent; as many as there are envs by default. More is less
            noisy.
        confirm: Fresh episodes that must reach `stop_at` too; 0 believes the first ones.
        confirm_envs: Where those are played; in `envs` by default. Where the episodes of `envs`
            are cut to save env steps, whole ones are seen in these.
        max_env_steps: Env steps of the whole run, those of evaluations included. Fresh episodes
            that might take more than are left are not played, and the run goes on. An evaluation
            that could not be confirmed is no `eval_value`.

    Raises:
        ConfigError: A setting is out of range, or the agents were made for other envs.
    """
    check_fits(population[0], envs)
    check_all(
        at_least(1, episodes=episodes) if episodes is not None else [],
        at_least(0, confirm=confirm),
        at_least(1, max_env_steps=max_env_steps) if max_env_steps is not None else [],
    )
    sure_envs = envs if confirm_envs is None else confirm_envs
    check_fits(population[0], sure_envs)
    return _EvaluatePopulation(
        population,
        envs,
        Period(every, every_env_steps),
        goal=math.inf if stop_at is None else stop_at,
        episodes=envs.num_envs if episodes is None else episodes,
        confirm=confirm,
        sure_envs=sure_envs,
        max_env_steps=max_env_steps,
    )


@dataclass
class _EvaluatePopulation:
    population: Population
    envs: Envs
    period: Period
    goal: float
    episodes: int
    confirm: int
    sure_envs: Envs
    max_env_steps: int | None

    __name__ = "evaluate_population"
    optional_state = True

    def __call__(self, ctx: Context) -> None:
        ctx.setdefault("eval_steps", 0)
        ctx.keep("eval_steps")
        if not self.period.is_due(ctx):
            return
        healthy = [agent for agent in self.population if not agent.rests]
        if healthy:
            values = self._play(ctx, healthy, self.envs, self.episodes).mean_returns
            for agent, value in zip(healthy, values, strict=True):
                agent.note_evaluation(value)
            ctx.metrics["fitness_mean"] = sum(values) / len(values)
        best, goal = self.population.best, self.goal
        value = -math.inf if best.fitness is None else best.fitness
        returns = self._fresh_returns(ctx, best) if value >= goal else []
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

    def _fresh_returns(self, ctx: Context, agent: Agent) -> list[float]:
        envs, returns = self.sure_envs, list[float]()
        at_once = envs.num_envs * math.ceil(_AT_ONCE / envs.num_envs)
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


def longest_evaluation(envs: Envs, episodes: int) -> int | None:
    """Return the env steps that so many episodes take if all last as long as the limit allows.

    None where there is no limit.
    """
    limit = envs.spec.max_episode_steps
    return None if limit is None else math.ceil(episodes / envs.num_envs) * envs.num_envs * limit


def _has_left(ctx: Context, max_env_steps: int | None, most: int | None) -> bool:
    """Whether so many env steps may still be made."""
    if max_env_steps is None:
        return True
    return bool(ctx.get("env_step", 0) + ctx.eval_steps + (most or 0) <= max_env_steps)
