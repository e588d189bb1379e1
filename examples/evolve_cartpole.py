"""Evolve six DQNs with different settings on CartPole-v1."""

from ding_lite import Agent, Middleware, Task, middleware as mw
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer, log_uniform
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs

TRY_NEXT = """\
Try next: look at who came from whom (lineage.jsonl), let evolution choose how often to learn
(learn_every=integer(1, 8) in the search), or all in one call: ding-lite evolve dqn CartPole-v1."""


def main() -> None:
    """Evolve with the options of the command line."""
    options = parse_options(__doc__, env="CartPole-v1", max_env_steps=200_000, target=475.0)
    envs = make_envs(options.env, num_envs=8, seed=options.seed)
    limit = {"max_episode_steps": 25} if options.smoke else {}
    eval_envs = make_envs(options.env, num_envs=2, seed=options.seed + 1, env_args=limit)
    search = Search(lr=log_uniform(1e-3, 5e-3), batch_size=integer(32, 128))
    config = DQNConfig(hidden=(64, 64), epsilon_steps=1_000)
    population = Population.of(DQN, envs.spec, search, size=6, seed=options.seed, config=config)
    replay = ReplayBuffer(envs.spec, capacity=50_000, seed=options.seed)
    tournament = Tournament(size=2, seed=options.seed)
    mutation = Mutation(search, seed=options.seed)
    generation = 2 if options.smoke else 10

    def learn(agent: Agent) -> list[Middleware]:
        return [
            mw.collect(agent, envs, steps=64),
            mw.add_to(replay),
            mw.train(agent, replay, updates=64),
        ]

    with Run("evolve_cartpole", options, config=config) as run:
        with Task() as task:
            parts = {"population": population, "replay": replay, "task": task}
            parts |= {"envs": envs, "eval_envs": eval_envs}
            lineage = run.directory / "lineage.jsonl"
            stop_at = options.target
            task.use(mw.for_each(population, learn))
            task.use(mw.evaluate(population, eval_envs, every=generation, stop_at=stop_at))
            task.use(mw.stop_at(env_step=options.max_env_steps))
            task.use(mw.evolve(population, tournament, mutation, every=generation, lineage=lineage))
            task.use(mw.checkpoint(parts, run.checkpoint, every=generation))
            task.use(run.time(task, every=5))
            task.use(mw.report(run, every=5, title=f"DQNs on {options.env}"))
            run.resume(parts)
            task.run()
        run.conclude(population.best.policy, try_next=TRY_NEXT)


if __name__ == "__main__":
    run_program(main)
