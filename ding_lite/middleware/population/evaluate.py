"""Evaluate all agents of a population at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from ding_lite.distributed.accelerate.processes import Processes
from ding_lite.errors import NonFiniteError
from ding_lite.evolution.agent import Agent
from ding_lite.evolution.batched.acting import ActTogether
from ding_lite.evolution.population import Population
from ding_lite.middleware.checks import Period, for_all_envs
from ding_lite.rl.batch import BoolArray
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.evaluation import BrokenPlayers, is_below, play_each
from ding_lite.runtime.context import Context

_AT_ONCE = 6
"""Number of fresh episodes, rounded up to whole envs, between two checks of their mean."""


@dataclass
class EvaluatePopulation:
    """Evaluates every agent; the middleware that `evaluate` makes for a population.

    All agents play at the same time: an env that has ended an episode begins the next one, of any
    agent. Fresh episodes are played in small groups, until their mean is below the goal by more
    than its standard error. With several processes each plays a part, and all of them get the same
    results: an agent that is broken on one of them is set aside on all.
    """

    population: Population
    envs: Envs
    period: Period
    goal: float
    episodes: int
    confirm: int
    sure_envs: Envs
    max_env_steps: int | None
    processes: Processes | None = None

    __name__ = "evaluate"
    optional_state = True

    def __call__(self, ctx: Context) -> None:
        ctx.setdefault("eval_steps", 0)
        ctx.keep("eval_steps")
        if not self.period.is_due(ctx):
            return
        agents = self.population.agents
        played = self._play(ctx, agents, self.envs, self.episodes)
        for agent, returns in zip(agents, played, strict=True):
            if not agent.is_skipped:
                agent.note_evaluation(fmean(returns))
        self.judge_best(ctx)

    def judge_best(self, ctx: Context) -> None:
        """Report the best agent's fitness, or its fresh episodes if it reaches the goal."""
        goal, (value, returns) = self.goal, self._value_of_best(ctx)
        is_known = value < goal or len(returns) > 0 or not self.confirm
        if returns:
            value = fmean(returns)

        if is_known:
            ctx.eval_value = value
        report_fitness(ctx, self.population, value)
        if value >= goal and len(returns) >= self.confirm:
            ctx.finish = True

    def _value_of_best(self, ctx: Context) -> tuple[float, list[float]]:
        """Return the fitness of the best agent, and fresh returns of it if it reaches the goal."""
        while True:
            best = self.population.best
            value = best.mean_fitness(1)
            returns = self._fresh_returns(ctx, best) if value >= self.goal else []
            if value == -math.inf or not best.is_skipped:
                return value, returns

    def _fresh_returns(self, ctx: Context, agent: Agent) -> list[float]:
        envs, returns = self.sure_envs, list[float]()
        at_once = for_all_envs(_AT_ONCE, envs)
        most = longest_evaluation(envs, at_once)
        while len(returns) < self.confirm and _has_left(ctx, self.max_env_steps, most):
            count = math.ceil((self.confirm - len(returns)) / self._num_processes)
            [more] = self._play(ctx, [agent], envs, min(at_once, count))
            returns += more
            if agent.is_skipped or is_below(self.goal, returns):
                break
        return returns

    @property
    def _num_processes(self) -> int:
        return 1 if self.processes is None else self.processes.size

    def _play(
        self, ctx: Context, agents: Sequence[Agent], envs: Envs, episodes: int
    ) -> list[list[float]]:
        """Return each agent's returns of all processes, and set aside those that are broken.

        The returns of a skipped agent have no meaning.
        """
        own, env_steps = _play_here(agents, envs, episodes)
        faults = [agent.fault is not None for agent in agents]
        numbers = [env_steps, *faults, *(value for returns in own for value in returns)]
        if self.processes is None:
            rows = np.array([numbers], dtype=np.float64)
        else:
            rows = self.processes.gather(self.__name__, numbers)
        ctx.eval_steps += int(rows[:, 0].sum())
        first = 1 + len(agents)
        set_aside_on_all(agents, rows[:, 1:first] > 0)
        by_process = rows[:, first:].reshape(len(rows), len(agents), episodes)
        everywhere: list[list[float]] = by_process.swapaxes(0, 1).reshape(len(agents), -1).tolist()
        return everywhere

    def state_dict(self) -> dict[str, Any]:
        return self.period.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.period.load_state_dict(state)


def report_fitness(ctx: Context, population: Population, value: float) -> None:
    """Write the metrics of an evaluation; `value` is the return of the best agent."""
    ctx.metrics["eval_return"] = value
    ctx.metrics["eval_steps"] = ctx.eval_steps
    known = [
        agent.evaluations[-1] for agent in population if agent.evaluations and not agent.is_skipped
    ]
    if known:
        ctx.metrics["fitness_mean"] = fmean(known)


def set_aside_on_all(agents: Sequence[Agent], is_broken: BoolArray) -> None:
    """Set aside the agents that are broken on any process; `is_broken` is [processes, agents]."""
    for agent, on_processes in zip(agents, is_broken.T, strict=True):
        if on_processes.any() and agent.fault is None:
            agent.set_aside(NonFiniteError("It is broken on another process."))


def _play_here(
    agents: Sequence[Agent], envs: Envs, episodes: int
) -> tuple[list[tuple[float, ...]], int]:
    """Return each agent's returns in this process, NaN for skipped ones, and the env steps."""
    returns, env_steps = [(math.nan,) * episodes for _ in agents], 0
    while healthy := [place for place, agent in enumerate(agents) if not agent.is_skipped]:
        act = ActTogether([agents[place] for place in healthy])
        try:
            played = play_each(act, envs, episodes=[episodes] * len(healthy), reset=act.reset)
        except BrokenPlayers as error:
            env_steps += error.env_steps
            for player in error.players:
                agents[healthy[player]].set_aside(error)
            continue
        for place, own in zip(healthy, played.returns, strict=True):
            returns[place] = own
        env_steps += played.env_steps
        break
    return returns, env_steps


def longest_evaluation(envs: Envs, episodes: int) -> int | None:
    """Return the env steps of `episodes` of maximum length; None without a time limit."""
    limit = envs.spec.max_episode_steps
    return None if limit is None else for_all_envs(episodes, envs) * limit


def _has_left(ctx: Context, max_env_steps: int | None, most: int | None) -> bool:
    if max_env_steps is None:
        return True
    return bool(ctx.get("env_step", 0) + ctx.eval_steps + (most or 0) <= max_env_steps)
