"""Train the agents of a population, and breed the next generation."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ding_lite.errors import ConfigError, NonFiniteError
from ding_lite.evolution.agent import Agent
from ding_lite.evolution.mutation import Mutation
from ding_lite.evolution.population import Life, Population, check_applies
from ding_lite.evolution.search import Value
from ding_lite.evolution.tournament import Tournament
from ding_lite.io.files import replacing
from ding_lite.middleware.checks import Period, check_has
from ding_lite.middleware.population.batched_train import together
from ding_lite.middleware.report.jsonl import file_path
from ding_lite.rl.host_or_device import Unread
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import (
    Middleware,
    check_middleware,
    composed_of,
    name_of,
    shape_of,
)
from ding_lite.runtime.pipeline import Onion

_COUNTERS = ("env_step", "train_iter")
_SUMS = {"episodes"}
_NEWEST = {"replay_size"}


def for_each(population: Population, learn: Callable[[Agent], Sequence[Middleware]]) -> Middleware:
    """Run a pipeline for each agent of a population.

    `learn(agent)` is called once for each agent, and returns its middleware. In each step the
    first middleware runs for one agent after the other, then the second one, and so on. Each
    agent has a ctx of its own, so agents share experience only through a shared replay. The
    counters `env_step` and `train_iter` are sums over all agents.

    Agents with networks of the same shape learn as one batched computation, if all train from one
    `ReplayBuffer`, or each from its own rollouts; the results are those of separate updates. An
    agent with a loss that is no longer finite is skipped until a better agent replaces it.

    Context:
        reads: env_step, train_iter
        writes: env_step, train_iter, metrics (what the agents report)
        keeps: env_step, train_iter

    Args:
        population: The agents.
        learn: Makes the middleware of an agent, such as `[mw.collect(agent, envs, steps=64),
            mw.add_to(replay), mw.train(agent, replay)]`. Metrics are means over the agents.

    Raises:
        ConfigError: `learn` makes no middleware, not the same number for all agents, or one that
            is asynchronous.
    """
    check_has(population, "evolve", "population")
    return _ForEach(population, learn)


class _ForEach:
    __name__ = "for_each"

    def __init__(
        self, population: Population, learn: Callable[[Agent], Sequence[Middleware]]
    ) -> None:
        self._population = population
        pipelines = [_checked(learn(agent), agent) for agent in population]
        lengths = {len(pipeline) for pipeline in pipelines}
        if len(lengths) > 1:
            raise ConfigError(
                f"`learn` made pipelines of {sorted(lengths)} middleware; as many for each agent "
                f"were expected, as all agents finish one before the next begins."
            )
        self._stages = [_Stage(stage) for stage in zip(*pipelines, strict=True)]
        self._kept: list[dict[str, Any]] = [{} for _ in population]
        self._sums: list[dict[str, int]] = [{} for _ in population]
        composed_of(self, [fn for pipeline in pipelines for fn in pipeline])

    def __call__(self, ctx: Context) -> Iterator[None] | None:
        own = [
            _Own(agent, Context(_visible(ctx) | kept))
            for agent, kept in zip(self._population, self._kept, strict=True)
        ]
        counters = {name: ctx.get(name, 0) for name in _COUNTERS}
        onion = Onion()
        try:
            for stage in self._stages:
                stage.run(own, counters, onion)
        except BaseException as error:  # noqa: BLE001 - raised again unless handled
            onion.unwind(error)

        for name, value in counters.items():
            ctx[name] = value
            ctx.keep(name)
        for turn, kept in zip(own, self._kept, strict=True):
            names = set(turn.ctx.kept).difference(_COUNTERS)
            kept |= {name: turn.ctx[name] for name in names if name in turn.ctx}
            if turn.ctx.finish:
                ctx.finish = True
        # An agent reports its number of episodes only in steps in which an episode ends.
        for name in _SUMS:
            for turn, sums in zip(own, self._sums, strict=True):
                sums[name] = turn.ctx.metrics.get(name, sums.get(name, 0))
        ctx.metrics.update(_joined([turn.ctx.metrics for turn in own], self._sums))
        return _way_out(onion) if onion.opened else None

    def state_dict(self) -> dict[str, Any]:
        return {"kept": [dict(kept) for kept in self._kept], "sums": [*map(dict, self._sums)]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept = [dict(kept) for kept in state["kept"]]
        self._sums = [dict(sums) for sums in state["sums"]]


@dataclasses.dataclass
class _Own:
    """An agent and its ctx of this step."""

    agent: Agent
    ctx: Context


class _Stage:
    """One stage of the pipeline: the corresponding middleware of all agents."""

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = middleware
        self._together = together(middleware)

    def run(self, own: Sequence[_Own], counters: dict[str, int], onion: Onion) -> None:
        """Run it for one agent after the other, or for several agents as a batch if possible."""
        done: set[int] = set()
        if self._together is not None:
            done = self._together([turn.ctx for turn in own], counters)
        for index, (fn, turn) in enumerate(zip(self._middleware, own, strict=True)):
            if index not in done and not turn.agent.rests:
                self._run_one(fn, turn, counters, onion)

    def _run_one(self, fn: Middleware, turn: _Own, counters: dict[str, int], onion: Onion) -> None:
        ctx = turn.ctx
        ctx.update(counters)
        try:
            out = fn(ctx)
            if out is not None:
                for _ in out:
                    onion.opened.append(out)
                    break
        except NonFiniteError as error:
            turn.agent.set_aside(error)
        counters.update({name: ctx[name] for name in counters})


def evolve(
    population: Population,
    tournament: Tournament,
    mutation: Mutation,
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
    lineage: str | os.PathLike[str] | None = None,
) -> Middleware:
    """Breed the next generation periodically: select, copy, mutate.

    Place it after `evaluate`: each agent must have been evaluated since the previous generation. In
    a step that ends the run there is no new generation, so that the best agent remains as it was
    evaluated.

    Context:
        reads: env_step (with every_env_steps), finish, total_step
        writes: fitness, generation, metrics (generation)
        keeps: fitness, generation

    Args:
        population: The population. Its `Agent` objects remain the same; their contents are
            replaced.
        tournament: Selects the agents that are copied to the places of others.
        mutation: Mutates all agents except the best.
        every: Steps of the pipeline from one generation to the next. More gives hyper-parameters
            more time to show their effect.
        every_env_steps: Env steps of the ctx from one generation to the next, instead of `every`.
        lineage: A file with one line of JSON for each agent of each generation: its parent, its
            mutation, and its fitness.

    Raises:
        ConfigError: A setting is out of range, or the policies cannot be mutated in this way; in
            a step: an agent was not evaluated.
    """
    check_has(tournament, "select", "tournament")
    check_has(mutation, "mutate", "mutation")
    check_has(mutation, "check", "mutation")
    check_has(population, "evolve", "population")
    period = Period(every, every_env_steps)
    check_applies(mutation, population.agents)
    path = None if lineage is None else file_path(lineage)
    return _Evolve(population, tournament, mutation, period, path)


@dataclasses.dataclass(eq=False)
class _Evolve:
    __name__ = "evolve"

    population: Population
    tournament: Tournament
    mutation: Mutation
    period: Period
    lineage: Path | None

    def __call__(self, ctx: Context) -> None:
        ctx.generation = self.population.generation
        ctx.keep("generation", "fitness")
        if not self.period.is_due(ctx):
            return

        if not ctx.finish:
            self.population.evolve(self.tournament, self.mutation)
        lives = self.population.lives
        newest = lives[-len(self.population) :] if not ctx.finish else self.population.lives_now()
        ctx.fitness = [life.fitness for life in newest]
        ctx.generation = self.population.generation
        ctx.metrics["generation"] = self.population.generation
        self._write()

    def __enter__(self) -> None:
        if self.lineage is not None:
            self.lineage.parent.mkdir(parents=True, exist_ok=True)
        self._write()

    def __exit__(self, *error: object) -> None:
        self._write()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the random generators; the population is saved separately."""
        return {
            "tournament": self.tournament.state_dict(),
            "mutation": self.mutation.state_dict(),
            **self.period.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.period.load_state_dict(state)
        self.tournament.load_state_dict(state["tournament"])
        self.mutation.load_state_dict(state["mutation"])

    def _write(self) -> None:
        """Rewrite the whole lineage atomically, so that it is also correct after a resume."""
        if self.lineage is None:
            return
        lives = [*self.population.lives, *self.population.lives_now()]
        with replacing(self.lineage) as unfinished:
            unfinished.write_text("".join(map(_line, lives)), encoding="utf-8")


def _line(life: Life) -> str:
    values = {name: _json_value(value) for name, value in life.hyperparameters.items()}
    plain = {"fitness": _json_value(life.fitness), "hyperparameters": values}
    return json.dumps({**dataclasses.asdict(life), **plain}) + "\n"


def _json_value(value: Value | None) -> Value | None:
    """Return a value, or None for a number that JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _checked(middleware: Sequence[Middleware], agent: Agent) -> list[Middleware]:
    found: object = middleware
    if not isinstance(found, list | tuple) or not found:
        raise ConfigError(
            f"`learn` returned {found!r} for agent {agent.place}; a list of middleware was "
            f"expected: `return [mw.collect(agent, envs, steps=64), mw.add_to(replay), ...]`."
        )
    for fn in middleware:
        check_middleware(fn)
        if shape_of(fn).is_async:
            raise ConfigError(
                f"`{name_of(fn)}` is asynchronous, and the pipelines of agents run one after the "
                f"other. Write it as an ordinary function."
            )
    return list(middleware)


def _visible(ctx: Context) -> dict[str, Any]:
    return {key: value for key, value in dict.items(ctx) if key != "metrics"}


def _joined(
    metrics: Sequence[Mapping[str, Any]], sums: Sequence[Mapping[str, int]]
) -> dict[str, Any]:
    """Join the metrics of several agents: means, the newest value, or sums of counts so far."""
    joined: dict[str, Any] = {}
    for name in {name: None for own in metrics for name in own}:
        values = [own[name] for own in metrics if name in own]
        if name in _NEWEST:
            joined[name] = values[-1]
        elif name in _SUMS:
            joined[name] = sum(counted[name] for counted in sums)
        else:
            joined[name] = _mean(values)
    return joined


def _mean(values: Sequence[Any]) -> Any:  # noqa: ANN401 - a number, or a lazy one on a device
    if any(isinstance(value, Unread) for value in values):
        return Unread(lambda: sum(map(float, values)) / len(values))
    return sum(values) / len(values)


def _way_out(onion: Onion) -> Iterator[None]:
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - raised again unless handled
        onion.unwind(error)
    else:
        onion.leave()
