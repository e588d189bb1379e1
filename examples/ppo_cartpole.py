"""Train a PPO on CartPole-v1, with a live display and a learning curve."""

from ding_lite import Task, middleware as mw
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import PPO, PPOConfig, make_envs

TRY_NEXT = """\
Try next: another seed (--seed 1), a harder task (--env Acrobot-v1 --target -100), or change PPO to
A2C in this program and `unroll` to 8: examples/ppo_cartpole.py is all of it."""


def main() -> None:
    """Train with the options of the command line."""
    options = parse_options(__doc__, env="CartPole-v1", max_env_steps=50_000, target=475.0)
    envs = make_envs(options.env, num_envs=8, seed=options.seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=options.seed + 1)
    config = PPOConfig(lr=2e-3, epochs=4, batch_size=64, seed=options.seed)
    policy = PPO(envs.spec, config)

    with Run("ppo_cartpole", options, config=config) as run:
        with Task() as task:
            parts = {"policy": policy, "envs": envs, "eval_envs": eval_envs, "task": task}
            task.use(mw.collect(policy, envs, unroll=16))
            task.use(mw.train(policy))
            task.use(mw.evaluate(policy, eval_envs, every=4, stop_at=options.target))
            task.use(mw.stop_at(env_step=options.max_env_steps))
            task.use(mw.checkpoint(parts, run.checkpoint, every=50))
            task.use(run.time(task, every=2))
            task.use(mw.report(run, every=2, title=f"PPO on {options.env}"))
            run.resume(parts)
            task.run()
        run.conclude(policy, try_next=TRY_NEXT)


if __name__ == "__main__":
    run_program(main)
