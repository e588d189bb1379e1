"""Evolve four DQNs until one of them lands on the moon.

The job is that of a tutorial of AgileRL: four agents with two hidden layers of 32, 16 environments,
batches of 128, a step size of 1e-3. So small a network needs more updates: four for each env step.
Needs Box2D: pip install "ding-lite[box2d]".
"""

from ding_lite import Agent, Middleware, Task, middleware as mw
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer, log_uniform
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs

TRY_NEXT = """\
Try next: another seed (--seed 1), six agents or 8 environments (POPULATION and NUM_ENVS in this
program), or `ding-lite evolve dqn LunarLander-v3`, whose agents have 64 units a layer."""
POPULATION = 4
NUM_ENVS = 16
TURN = 128
"""Env steps that an agent makes before the next one takes over the environments."""


def main() -> None:
    """Evolve with the options of the command line."""
    options = parse_options(__doc__, env="LunarLander-v3", max_env_steps=400_000, target=200.0)
    seed = options.seed
    envs = make_envs(options.env, num_envs=NUM_ENVS, seed=seed, mode="sync", reward_scale=0.1)
    # Who only hovers is not watched to the end; who seems good has to be so in whole episodes.
    limit = {"max_episode_steps": 25 if options.smoke else 600}
    eval_envs = make_envs(options.env, num_envs=3, seed=seed + 1, mode="sync", settings=limit)
    confirm_envs = make_envs(options.env, num_envs=3, seed=seed + 2, mode="sync")
    search = Search(lr=log_uniform(5e-4, 2e-3), batch_size=integer(64, 256))
    config = DQNConfig(
        hidden=(32, 32),
        batch_size=128,
        lr=1e-3,
        lr_end=3e-4,
        lr_updates=300_000,
        gamma=0.99,
        target_tau=1e-3,
        loss="mse",
        n_step=3,
        max_grad_norm=10.0,
        epsilon_end=0.02,
        epsilon_steps=12_000,
    )
    population = Population.of(DQN, envs.spec, search, size=POPULATION, seed=seed, config=config)
    replay = ReplayBuffer(envs.spec, capacity=200_000, seed=seed)
    tournament = Tournament(size=2, seed=seed)
    mutation = Mutation(search, weights=0.1, seed=seed)
    generation = 2 if options.smoke else 46

    def learn(agent: Agent) -> list[Middleware]:
        return [
            mw.collect(agent, envs, steps=TURN),
            mw.add_to(replay),
            mw.train(agent, replay, updates=4 * TURN),
        ]

    with Run("evolve_lunarlander", options, config=config) as run:
        with Task() as task:
            parts = {"population": population, "replay": replay, "task": task}
            parts |= {"envs": envs, "eval_envs": eval_envs, "confirm_envs": confirm_envs}
            lineage = run.directory / "lineage.jsonl"
            # Higher than the target, so that the fresh episodes of the verdict reach it, too.
            stop_at = options.target + 30.0
            task.use(mw.for_each(population, learn))
            task.use(
                mw.evaluate_population(
                    population,
                    eval_envs,
                    every=generation,
                    episodes=3,
                    stop_at=stop_at,
                    confirm=40,
                    confirm_envs=confirm_envs,
                    max_env_steps=options.max_env_steps,
                )
            )
            task.use(mw.stop_at(env_step=options.max_env_steps))
            task.use(mw.evolve(population, tournament, mutation, every=generation, lineage=lineage))
            task.use(mw.checkpoint(parts, run.checkpoint, every=generation))
            task.use(mw.log(every=5, path=run.metrics, quiet=True))
            task.use(mw.tensorboard(run.directory))
            task.use(mw.curve(run.curve, target=options.target, title=f"DQNs on {options.env}"))
            task.use(mw.progress(max_env_steps=options.max_env_steps, target=options.target))
            run.resume(parts)
            task.run()
        run.conclude(population.best.policy, try_next=TRY_NEXT)


if __name__ == "__main__":
    run_program(main)
