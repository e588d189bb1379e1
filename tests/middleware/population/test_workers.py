"""Members on several nodes, in pipelines: the same population as without them, and every time."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ding_lite import middleware as mw
from ding_lite.distributed import PopulationServer, Processes, World
from ding_lite.distributed.accelerate.processes import digest_of
from ding_lite.errors import ConfigError
from ding_lite.evolution import (
    Agent,
    Mutation,
    Population,
    Search,
    Tournament,
    integer,
    log_uniform,
)
from ding_lite.rl import DQN, ReplayBuffer, make_envs
from ding_lite.runtime import Context, LocalRouter, Middleware, Task, use_router
from ding_lite.testing import Cluster, run_step
from tests.middleware.running import run_steps

SEARCH = Search(lr=log_uniform(1e-4, 1e-2), batch_size=integer(8, 32), learn_every=integer(2, 8))
EVERY, GENERATIONS = 2, 2


class Program:
    """The parts that the programs below share: envs, a replay, a population, its training."""

    def __init__(self, seed: int = 0) -> None:
        self.envs = make_envs("CartPole-v1", 4, seed=seed, mode="sync")
        self.eval_envs = make_envs("CartPole-v1", 2, seed=seed + 1, mode="sync")
        self.replay = ReplayBuffer(self.envs.spec, capacity=500, seed=seed)
        spec, config = self.envs.spec, {"hidden": (8,)}
        self.population = Population.of(DQN, spec, SEARCH, size=4, config=config)
        self.tournament, self.mutation = Tournament(), Mutation(SEARCH, none=0.1)

    def learn(self, agent: Agent) -> list[Middleware]:
        collect = mw.collect(agent, self.envs, steps=16)
        return [collect, mw.add_to(self.replay), mw.train(agent, self.replay)]

    def evolve(self, population: Population) -> Middleware:
        return mw.evolve(population, self.tournament, self.mutation, every=EVERY)


def digest(population: Population) -> bytes:
    """Describe a population, with its past lives."""
    return digest_of(population.state_dict())


@cache
def plain(steps: int = EVERY * GENERATIONS) -> tuple[bytes, int, int]:
    """Run the same in a single process, without a server."""
    own = Program()
    task = run_steps(
        mw.for_each(own.population, own.learn),
        mw.evaluate(own.population, own.eval_envs, every=EVERY),
        own.evolve(own.population),
        steps=steps,
    )
    return digest(own.population), task.ctx.env_step, task.ctx.eval_steps


def spread(stop_at: float | None = None) -> tuple[bytes, int, int] | None:
    world = World.current()
    own = Program(seed=100 * world.node_id)
    groups = world.group("breeder"), world.group("learner")
    server = PopulationServer(*groups, own.population)
    population = server.population
    with Task() as task:
        learner, breeder = task.at("learner"), task.at("breeder")
        learner.use(mw.take_members(own.population, server))
        learner.use(mw.for_each(own.population, own.learn))
        learner.use(mw.evaluate(own.population, own.eval_envs, every=EVERY))
        learner.use(mw.return_members(own.population, server, every=EVERY))
        breeder.use(mw.gather_members(server, every=EVERY))
        if stop_at is not None:
            breeder.use(mw.confirm_best(server, own.eval_envs, every=EVERY, stop_at=stop_at))
        breeder.use(own.evolve(population))
        breeder.use(lambda ctx: end(ctx, population))
        task.run()
    if not task.match_labels("breeder"):
        return None
    return digest(population), task.ctx.env_step, task.ctx.eval_steps


def end(ctx: Context, population: Population) -> None:
    if population.generation == GENERATIONS:
        ctx.finish = True


def on_one_node(stop_at: float | None = None) -> Any:
    with use_router(LocalRouter(labels=["breeder", "learner"])):
        return spread(stop_at)


def test_one_node_that_does_both_ends_where_a_program_without_a_server_ends() -> None:
    # The best agent is never good enough in fresh episodes, of which the breeder plays some.
    assert on_one_node() == plain()
    assert on_one_node(stop_at=501.0)[:2] == plain()[:2]


def test_a_seed_gives_the_same_population_on_the_same_nodes() -> None:
    ends = []
    for _ in range(2):
        with Cluster(3, "star", roles=["breeder", "learner", "learner"]) as cluster:
            ends.append(cluster.run(spread)[0])
    assert ends[0] == ends[1]
    assert ends[0][1] == GENERATIONS * EVERY * 4 * 16


def test_a_best_agent_that_is_good_in_fresh_episodes_too_ends_the_run() -> None:
    _, env_step, eval_steps = on_one_node(stop_at=1.0)
    assert env_step == EVERY * 4 * 16  # a single generation
    assert eval_steps > plain(EVERY)[2]


def test_a_node_with_a_smaller_population_is_told_so() -> None:
    own = Program()
    smaller = Population.of(DQN, own.envs.spec, SEARCH, size=2, config={"hidden": (8,)})
    with use_router(LocalRouter()):
        group = World.current().group("node.*")
        take = mw.take_members(smaller, PopulationServer(group, group, own.population))
        with pytest.raises(ConfigError, match=r"of this node has 2 agents, .* number 3"):
            run_step(take)


def together(**more: Any) -> tuple[bytes, int, int]:
    own, processes = Program(), Processes()
    task = run_steps(
        mw.for_each(own.population, own.learn),
        mw.average_agents(own.population, processes),
        mw.evaluate(own.population, own.eval_envs, processes, every=EVERY, **more),
        own.evolve(own.population),
        mw.share_generation(own.population, processes, every=EVERY),
        steps=EVERY * GENERATIONS,
    )
    return digest(own.population), task.ctx.env_step, task.ctx.eval_steps


def test_one_process_of_accelerate_ends_where_a_program_without_it_ends() -> None:
    assert together() == plain()


def test_processes_stop_when_their_best_is_good_in_fresh_episodes_too() -> None:
    _, env_step, eval_steps = together(stop_at=1.0)
    assert env_step == EVERY * 4 * 16
    assert eval_steps > plain(EVERY)[2]
    assert together(stop_at=501.0)[1] == GENERATIONS * EVERY * 4 * 16
