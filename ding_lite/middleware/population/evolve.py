"""Train the agents of a population, and breed the next generation."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
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
from ding_lite.runtime.context import Context, latch_of
from ding_lite.runtime.middleware import (
    Middleware,
    check_middleware,
    composed_of,
    name_of,
    shape_of,
)
from ding_lite.runtime.pipeline import Onion

_COUNTERS = ("env_step", "train_iter")


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
        # Each stage: the middleware of all agents, and what trains several as a batch.
        self._stages = [(stage, together(stage)) for stage in zip(*pipelines, strict=True)]
        self._kept: list[dict[str, Any]] = [{} for _ in population]
        self._num_episodes = [0] * len(population)
        composed_of(self, [fn for pipeline in pipelines for fn in pipeline])

    def __call__(self, ctx: Context) -> Iterator[None] | None:
        contexts = [Context(_visible(ctx) | kept) for kept in self._kept]
        counters = {name: ctx.get(name, 0) for name in _COUNTERS}
        onion = Onion()
        try:
            for stage, train_together in self._stages:
                done = train_together(contexts, counters) if train_together is not None else ()
                own = zip(stage, self._population, contexts, strict=True)
                for index, (fn, agent, one) in enumerate(own):
                    if index not in done and not agent.is_skipped:
                        _run_one(fn, agent, one, counters, onion)
        except BaseException as error:  # noqa: BLE001 - raised again unless handled
            onion.unwind(error)

        for name, value in counters.items():
            ctx[name] = value
            ctx.keep(name)
        for one, kept in zip(contexts, self._kept, strict=True):
            names = set(one.kept).difference(_COUNTERS)
            kept |= {name: one[name] for name in names if name in one}
            if one.finish:
                ctx.finish = True
        metrics = [one.metrics for one in contexts]
        # An agent reports its number of episodes only in steps in which an episode ends.
        self._num_episodes = [
            of_agent.get("episodes", before)
            for of_agent, before in zip(metrics, self._num_episodes, strict=True)
        ]
        ctx.metrics.update(_joined(metrics, sum(self._num_episodes)))
        return onion.way_out() if onion.opened else None

    def state_dict(self) -> dict[str, Any]:
        sums = [{"episodes": count} for count in self._num_episodes]
        return {"kept": [dict(kept) for kept in self._kept], "sums": sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept = [dict(kept) for kept in state["kept"]]
        self._num_episodes = [sums.get("episodes", 0) for sums in state["sums"]]


def _run_one(
    fn: Middleware, agent: Agent, ctx: Context, counters: dict[str, int], onion: Onion
) -> None:
    ctx.update(counters)
    try:
        out = fn(ctx)
        if out is not None:
            for _ in out:
                onion.opened.append(out)
                break
    except NonFiniteError as error:
        agent.set_aside(error)
    except Exception as error:
        with suppress(Exception):  # its class may refuse notes
            error.add_note(f"in `{name_of(fn)}` of agent {agent.place}")
        raise
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
    a step in which `ctx.finish` is set there is no new generation, so that the best agent remains
    as it was evaluated. After Ctrl-C there is one, as without it, since the run may be resumed.

    Context:
        reads: env_step (with every_env_steps), finish, total_step
        writes: fitness, generation, metrics (generation)
        keeps: fitness, generation

    Args:
        population: The population. Its `Agent` objects remain the same; their contents are
            replaced.
        tournament: Selects the agents that are copied to the places of others.
        mutation: Mutates all agents except the elite of the tournament.
        every: Steps of the pipeline from one generation to the next. More gives hyperparameters
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
    check_applies(tournament, mutation, population)
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

        is_last = latch_of(ctx).was_finished
        if ctx.finish and not all(agent.num_new_evaluations for agent in self.population):
            is_last = True  # a signal has ended the wait for members on other nodes
        if not is_last:
            self.population.evolve(self.tournament, self.mutation)
        lives = self.population.lives
        newest = self.population.lives_now() if is_last else lives[-len(self.population) :]
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


def _json_value(value: Value) -> Value:
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


def _joined(metrics: Sequence[Mapping[str, Any]], num_episodes: int) -> dict[str, Any]:
    """Join the metrics of several agents: their means, except for counts of shared things."""
    newest = {name: value for own in metrics for name, value in own.items()}
    counts = {"episodes": num_episodes, "replay_size": newest.get("replay_size")}
    return {
        name: counts[name]
        if name in counts
        else _mean([own[name] for own in metrics if name in own])
        for name in newest
    }


def _mean(values: Sequence[Any]) -> Any:  # noqa: ANN401 - a number, or a lazy one on a device
    if any(isinstance(value, Unread) for value in values):
        return Unread(lambda: sum(map(float, values)) / len(values))
    return sum(values) / len(values)
