"""Evolve four DQNs on LunarLander-v3.

The settings are those of AgileRL's tutorial: four agents (or six, on 8 environments) with the
networks of its `NET_CONFIG`, batches of 128, a learning rate of 1e-3, and one update for each env
step. Needs Box2D: pip install "ding-lite[box2d]".
"""

from typing import Any

from ding_lite import Agent, Middleware, Task, middleware as mw
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer, log_uniform
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs

TRY_NEXT = """\
Try next: another seed (--seed 1), six agents (--population 6 --num-envs 8), or
`ding-lite evolve dqn LunarLander-v3`, whose agents have 64 units a layer."""
NET_CONFIG: dict[str, Any] = {
    "arch": "mlp",  # Network architecture
    "h_size": [32, 32],  # Actor hidden size
}
TURN = 128
"""Env steps that an agent makes before the next one takes over the environments."""
EPISODES = 3
"""Those of each agent in an evaluation."""


def main() -> None:
    """Evolve with the options of the command line."""
    options = parse_options(
        __doc__,
        env="LunarLander-v3",
        max_env_steps=400_000,
        target=200.0,
        population=4,
        num_envs=16,
    )
    seed, size, num_envs = options.seed, options.population, options.num_envs
    envs = make_envs(options.env, num_envs=num_envs, seed=seed, mode="sync", reward_scale=0.1)
    # Evaluations cut long episodes of hovering; good agents are confirmed in whole episodes.
    limit = {"max_episode_steps": 25 if options.smoke else 600}
    longest = size * EPISODES * limit["max_episode_steps"]
    eval_seed, confirm_seed = options.seed_for("evaluation"), options.seed_for("confirmation")
    eval_envs = make_envs(
        options.env, num_envs=EPISODES, seed=eval_seed, mode="sync", env_args=limit
    )
    confirm_envs = make_envs(options.env, num_envs=EPISODES, seed=confirm_seed, mode="sync")
    search = Search(lr=log_uniform(5e-4, 2e-3), batch_size=integer(64, 256))
    config = DQNConfig(
        torso=NET_CONFIG["arch"],
        hidden=tuple(NET_CONFIG["h_size"]),
        batch_size=128,
        lr=1e-3,
        gamma=0.99,
        target_tau=1e-3,
        loss="mse",
        n_step=3,
        max_grad_norm=10.0,
        epsilon_end=0.02,
        epsilon_steps=12_000,
    )
    population = Population.of(DQN, envs.spec, search, size=size, seed=seed, config=config)
    replay = ReplayBuffer(envs.spec, capacity=200_000, seed=seed)
    tournament = Tournament(size=2, seed=options.seed_for("evolve/tournament"))
    mutation = Mutation(search, weights=0.1, seed=options.seed_for("evolve/mutation"))
    warmup = 100 if options.smoke else 1_000  # random env steps before the first update
    generation = 2 if options.smoke else max(1, 24_000 // (size * TURN))

    def learn(agent: Agent) -> list[Middleware]:
        return [
            mw.collect(agent, envs, steps=TURN),
            mw.add_to(replay),
            mw.train(agent, replay, updates=TURN),
        ]

    with Run("evolve_lunarlander", options, config=config) as run:
        with Task() as task:
            best_agent = mw.keep_best(population, run.best)
            budget = mw.env_step_budget(options.max_env_steps, every=generation, longest=longest)
            parts = {"population": population, "replay": replay, "task": task}
            parts |= {"envs": envs, "eval_envs": eval_envs, "confirm_envs": confirm_envs}
            lineage = run.directory / "lineage.jsonl"
            # Higher than the target, so that the fresh episodes of the verdict reach it, too.
            stop_at = options.target + 30.0
            task.use(mw.random_warmup(envs, replay, steps=warmup))
            task.use(mw.for_each(population, learn))
            task.use(
                mw.evaluate(
                    population,
                    eval_envs,
                    every=generation,
                    episodes=EPISODES,
                    stop_at=stop_at,
                    confirm=40,
                    confirm_envs=confirm_envs,
                    max_env_steps=options.max_env_steps,
                )
            )
            task.use(best_agent)
            task.use(mw.evolve(population, tournament, mutation, every=generation, lineage=lineage))
            task.use(budget)
            task.use(mw.checkpoint(parts, run.checkpoint, every=generation))
            task.use(run.time(task, every=5))
            task.use(mw.report(run, every=5, title=f"DQNs on {options.env}"))
            run.resume(parts, stop_at=stop_at)
            if budget.had_ended(task.ctx):
                task.finish = True
            task.run()
        run.conclude(best_agent.agent.policy, try_next=TRY_NEXT)


if __name__ == "__main__":
    run_program(main)
