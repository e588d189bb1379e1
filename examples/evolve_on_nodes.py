"""Evolve DQNs on several nodes: learners train the members, and a breeder makes the next ones.

A learner takes its share of the population, trains and evaluates it for a generation, and returns
it. The breeder waits for all of them, selects, mutates, and distributes the offspring. When a
learner dies, its members begin their generation again on another node, or on the learner's next
incarnation. With `--nodes 1` the same file does all of it in one process.
"""

from collections.abc import Mapping

from torch import Tensor

from ding_lite import Agent, Middleware, Parallel, Task, middleware as mw
from ding_lite.distributed import PopulationServer, World
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer, log_uniform
from ding_lite.recipes import Options, Run, parse_options, run_program
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs

Best = tuple[DQNConfig, Mapping[str, Tensor]]
TRY_NEXT = """\
Try next: all of it in one process (--nodes 1), more learners (--nodes 4), or look at who came from
whom (lineage.jsonl), and change this program: examples/evolve_on_nodes.py is the whole of it."""


def main(options: Options, config: DQNConfig, run: Run) -> Best | None:
    """Do this node's part of the evolution; return the best agent on the breeder."""
    world = World.current()
    seed = options.seed + world.node_seed  # so that each learner's environments are its own
    envs = make_envs(options.env, num_envs=8, seed=seed)
    limit = {"max_episode_steps": 25} if options.smoke else {}
    eval_envs = make_envs(options.env, num_envs=2, seed=seed + 500, env_args=limit)
    replay = ReplayBuffer(envs.spec, capacity=50_000, seed=seed)
    search = Search(lr=log_uniform(1e-3, 5e-3), batch_size=integer(32, 128))
    population = Population.of(DQN, envs.spec, search, size=6, seed=options.seed, config=config)
    server = PopulationServer(world.group("breeder"), world.group("learner"), population)
    tournament = Tournament(size=2, seed=options.seed)
    mutation = Mutation(search, seed=options.seed)
    every = 2 if options.smoke else 10  # steps of a generation

    def learn(agent: Agent) -> list[Middleware]:
        return [
            mw.collect(agent, envs, steps=64),
            mw.add_to(replay),
            mw.train(agent, replay, updates=64),
        ]

    with Task() as task:
        learner, breeder = task.at("learner"), task.at("breeder")
        is_breeder = task.match_labels("breeder")

        learner.use(mw.take_members(population, server))
        learner.use(mw.for_each(population, learn))
        learner.use(mw.evaluate(population, eval_envs, every=every))
        learner.use(mw.return_members(population, server, every=every))

        goal, lineage = options.target, run.directory / "lineage.jsonl" if is_breeder else None
        breeder.use(mw.gather_members(server, every=every))
        breeder.use(mw.confirm_best(server, eval_envs, every=every, stop_at=goal))
        breeder.use(mw.stop_at(env_step=options.max_env_steps))
        breeder.use(
            mw.evolve(server.population, tournament, mutation, every=every, lineage=lineage)
        )
        breeder.use(mw.checkpoint({"server": server, "task": task}, run.checkpoint, every=every))
        breeder.use(run.time(task, every=every))
        breeder.use(mw.report(run, every=every, title=f"DQNs on {options.env}"))
        if is_breeder:
            run.resume({"server": server, "task": task})
        task.run()
    best = server.population.best
    return (best.config, best.weights()) if is_breeder else None


def launch() -> None:
    """Start the nodes with the options of the command line, and judge the best agent."""
    options = parse_options(
        __doc__, env="CartPole-v1", max_env_steps=200_000, target=475.0, nodes=3
    )
    config = DQNConfig(hidden=(64, 64), epsilon_steps=1_000)
    learners = [{"learner"}] * (options.nodes - 1)
    roles = [{"breeder"}, *learners] if learners else [{"breeder", "learner"}]
    with Run("evolve_on_nodes", options, config=config) as run:
        runner = Parallel.runner(
            n_parallel_workers=options.nodes, topology="star", roles=roles, auto_recover=True
        )
        best_config, weights = run.of_node_0(runner(main, options, config, run))
        with make_envs(options.env, num_envs=1) as envs:
            best = DQN(envs.spec, best_config)
        best.load_weights(weights)
        run.conclude(best, try_next=TRY_NEXT)


if __name__ == "__main__":
    run_program(launch)
