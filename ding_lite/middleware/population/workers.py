"""Train the members of a population on several nodes, and evolve it on one of them."""

from __future__ import annotations

from collections.abc import Iterator

from ding_lite.distributed.population_server import COUNTERS, PopulationServer
from ding_lite.errors import ConfigError
from ding_lite.evolution.population import Population
from ding_lite.middleware.checks import Period, check_fits, check_has, for_all_envs
from ding_lite.middleware.population.evaluate import EvaluatePopulation, report_fitness
from ding_lite.rl.envs.vector import Envs
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings.rules import at_least, check_all


def take_members(population: Population, server: PopulationServer) -> Middleware:
    """Take the agents of a generation that a population server assigns to this node.

    `for_each` and `evaluate` skip all other agents. In the first step of a generation it waits
    until there are agents to train. Place it before `for_each`, and `return_members` after
    `evaluate`.

    Context:
        reads: env_step, eval_steps, finish, train_iter

    Args:
        population: The population of this node.
        server: The population server.

    Raises:
        ConfigError: In a step: the server's population has more agents.
        DeadlineExceeded: In a step: the server's node was not reachable for too long.
    """
    check_has(server, "take", "server")
    for agent in population:
        agent.is_away = True

    def _take_members(ctx: Context) -> None:
        if server.held is not None:
            return
        share = server.take(until=lambda: ctx.finish)
        if share is None:
            return
        if max(share.states) >= len(population):
            raise ConfigError(
                f"The population of this node has {len(population)} agents, and the server's has "
                f"more: it has handed out number {max(share.states)}, counted from 0. Make it with "
                f"the same arguments on all nodes."
            )
        share.since = {name: ctx.get(name, 0) for name in COUNTERS}
        population.generation = share.generation
        for place, state in share.states.items():
            population[place].load_state_dict(state)
            population[place].is_away = False

    return _take_members


def return_members(population: Population, server: PopulationServer, *, every: int) -> Middleware:
    """Return the trained and evaluated agents of a generation to a population server.

    Context:
        reads: env_step, eval_steps, finish, total_step, train_iter

    Args:
        population: The population of this node.
        server: The server of `take_members`.
        every: Steps of the pipeline in a generation, the same on all nodes.

    Raises:
        ConfigError: A setting is out of range.
        DeadlineExceeded: In a step: the server's node was not reachable for too long.
    """
    check_has(server, "give", "server")
    period = Period(every)

    def _return_members(ctx: Context) -> None:
        if not period.is_due(ctx) or server.held is None:
            return
        since = server.held.since
        states = {place: population[place].state_dict() for place in server.held.states}
        counted = {name: ctx.get(name, 0) - since.get(name, 0) for name in COUNTERS}
        server.give(states, counted, until=lambda: ctx.finish)
        for agent in population:
            agent.is_away = True

    return _return_members


def gather_members(server: PopulationServer, *, every: int) -> Middleware:
    """Wait for all members of a generation, and distribute the next generation after the step.

    Later middleware see the complete `server.population`: `evolve` breeds the next generation on
    this node, and `checkpoint`, `log` and `stop_at` work as in one process. Env steps, updates and
    the env steps of evaluations are counted for returned members only; those that were lost with a
    node are not counted. In a step that ends the run no members are distributed.

    Context:
        reads: finish, total_step
        writes: env_step, eval_steps, eval_value, train_iter, metrics (eval_return, eval_steps, \
fitness_mean, restored)
        keeps: env_step, eval_steps, train_iter

    Args:
        server: A population server that this node owns.
        every: Steps of the pipeline in a generation, the same on all nodes. On a node that only
            breeds, the other steps do nothing and take no time.

    Raises:
        ConfigError: A setting is out of range; or, in a step, this node is not the owner.
        DeadlineExceeded: In a step: members were lost, and no node is left to train them.
    """
    check_has(server, "gather", "server")
    period = Period(every)

    def _gather_members(ctx: Context) -> Iterator[None]:
        is_complete = period.is_due(ctx) and server.gather(until=lambda: ctx.finish)
        if is_complete:
            _report(ctx, server)
        yield
        if is_complete and not ctx.finish:
            server.hand_out()

    return _gather_members


def _report(ctx: Context, server: PopulationServer) -> None:
    for name, count in server.counts.items():
        ctx[name] = count
        ctx.keep(name)
    ctx.eval_value = server.population.best.mean_fitness(1)
    report_fitness(ctx, server.population, ctx.eval_value)
    ctx.metrics["restored"] = server.num_restored


def confirm_best(
    server: PopulationServer,
    envs: Envs,
    *,
    every: int,
    stop_at: float,
    episodes: int = 20,
) -> Middleware:
    """Play fresh episodes with the best agent if its fitness reaches `stop_at`; finish on success.

    The best of many noisy evaluations is biased upwards. Place it after `gather_members`.

    Context:
        reads: total_step
        writes: eval_steps, eval_value, finish, metrics (eval_return, eval_steps, fitness_mean)
        keeps: eval_steps

    Args:
        server: A population server that this node owns; the best agent acts without exploration.
        envs: Environments for evaluations only.
        every: Steps of the pipeline in a generation, the same on all nodes.
        stop_at: The mean return at which `ctx.finish` is set.
        episodes: The maximum number of fresh episodes, rounded up to the same number for each env.
            Playing ends as soon as their mean is clearly below `stop_at`.

    Raises:
        ConfigError: A setting is out of range, or the agents were made for other envs; or, in a
            step, this node is not the owner.
    """
    check_has(server, "gather", "server")
    check_all(at_least(1, episodes=episodes))
    period = Period(every)
    episodes = for_all_envs(episodes, envs)

    def _confirm_best(ctx: Context) -> None:
        if not period.is_due(ctx):
            return
        population = server.population
        check_fits(population.best, envs)
        ctx.eval_steps = server.counts["eval_steps"]
        ctx.keep("eval_steps")
        EvaluatePopulation(
            population=population,
            envs=envs,
            period=period,
            goal=stop_at,
            episodes=episodes,
            confirm=episodes,
            sure_envs=envs,
            max_env_steps=None,
        ).judge_best(ctx)
        server.counts["eval_steps"] = ctx.eval_steps

    return _confirm_best
