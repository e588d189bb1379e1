"""Train one population in several processes that Accelerate has connected (`Processes`).

Each process collects with all agents in environments of its own, and trains them on that data. The
agents' states are averaged over processes once a step, and so are their returns in evaluations. The
main process breeds the next generation, and all processes load it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from ding_lite.distributed.accelerate.processes import Processes, mean_of_states
from ding_lite.evolution.population import Population
from ding_lite.middleware.checks import Period, check_has
from ding_lite.middleware.population.evaluate import set_aside_on_all
from ding_lite.rl.seeding import spawn_seeds
from ding_lite.runtime.context import Context, latch_of
from ding_lite.runtime.middleware import Middleware


def average_agents(population: Population, processes: Processes) -> Middleware:
    """Average the state of every agent over all processes.

    The state includes weights, target networks and the state of the optimiser. After this
    middleware `ctx.env_step` counts the env steps of all processes; schedules of the agents count
    those of one process. When one process sets `ctx.finish`, all finish in the same step. Place it
    after `for_each`.

    Context:
        reads: env_step, finish
        writes: env_step, finish
        keeps: env_step

    Args:
        population: The same population on all processes, each with environments of its own.
        processes: The processes; all must run this middleware in every step.

    Raises:
        ConfigError: The arguments are in the wrong order.
        MiddlewareError: When the run begins: a process has another population than the main
            process. In a step: another process is at another place of its program.
        PeerLost: In a step: another process has ended, or has not responded in time.
    """
    check_has(population, "evolve", "population")
    check_has(processes, "gather", "processes")
    return _AverageAgents(population, processes)


class _AverageAgents:
    __name__ = "average_agents"

    def __init__(self, population: Population, processes: Processes) -> None:
        self._population = population
        self._processes = processes
        self._env_step = 0
        self._is_checked = self._has_begun = False

    def __enter__(self) -> Self:
        """Begin a run; the first run checks that the population is the same on all processes."""
        if not self._is_checked:
            self._is_checked = True
            _check_same(self._population, self._processes)
        if not self._has_begun:
            self._has_begun = True
            _explore_apart(self._population, self._processes)
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def __call__(self, ctx: Context) -> Iterator[None]:
        self._count(ctx)
        agents = [agent for agent in self._population if not agent.is_skipped]
        states = [agent.policy.state_dict() for agent in agents]
        means = mean_of_states(self._processes, "average_agents", states)
        for agent, state in zip(agents, means, strict=True):
            agent.policy.load_state_dict(state)
        yield
        own = [ctx.finish, latch_of(ctx).was_finished]
        each = self._processes.gather("the end of a step", own)
        if each[:, 1].any():
            ctx.finish = True
        elif each[:, 0].any():  # by a signal to one of them
            latch_of(ctx).end_run()

    def state_dict(self) -> dict[str, Any]:
        return {"env_step": self._env_step, "has_begun": self._has_begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._env_step = int(state["env_step"])
        self._has_begun = bool(state["has_begun"])

    def _count(self, ctx: Context) -> None:
        """Sum env steps, and set agents aside that are not finite on one process."""
        made = ctx.get("env_step", 0) - self._env_step
        faults = [agent.fault is not None for agent in self._population]
        rows = self._processes.gather("env steps and faults", [made, *faults])
        self._env_step += int(rows[:, 0].sum())
        ctx.env_step = self._env_step
        ctx.keep("env_step")
        set_aside_on_all(self._population.agents, rows[:, 1:] > 0)


def share_generation(population: Population, processes: Processes, *, every: int) -> Middleware:
    """Send the population of the main process to all processes after each generation.

    Afterwards the processes check that their populations are equal bit for bit. Place it after
    `evolve`, which only the main process uses: `if processes.is_main: task.use(mw.evolve(...))`.

    Context:
        reads: total_step
        writes: generation
        keeps: generation

    Args:
        population: The population of this process.
        processes: The processes; all must run this middleware in every step.
        every: Steps of the pipeline in a generation.

    Raises:
        ConfigError: A setting is out of range, or the arguments are in the wrong order.
        MiddlewareError: In a step: a process has another population than the main process, or is
            at another place of its program.
        PeerLost: In a step: another process has ended, or has not responded in time.
    """
    check_has(population, "evolve", "population")
    check_has(processes, "broadcast", "processes")
    period = Period(every)

    def _share_generation(ctx: Context) -> None:
        if not period.is_due(ctx):
            return
        # Only the main process keeps and reports the records of earlier generations.
        bred = processes.broadcast("population", population.state_dict() | {"lives": []})
        if not processes.is_main:
            population.load_state_dict(bred)
        _check_same(population, processes)
        _explore_apart(population, processes)
        ctx.generation = population.generation
        ctx.keep("generation")

    return _share_generation


def _check_same(population: Population, processes: Processes) -> None:
    agents = [agent.clone() for agent in population]
    for agent in agents:
        agent.reseed(0)  # processes draw different random numbers
    generation, states = population.generation, [agent.state_dict() for agent in agents]
    same = {"agents": states, "generation": generation}
    processes.check_same("population", same, generation=generation)


def _explore_apart(population: Population, processes: Processes) -> None:
    if processes.is_main:
        return
    for agent in population:
        [seed] = spawn_seeds(population.generation, f"agent {agent.birth.id}", count=1)
        agent.reseed(processes.seed(seed))
