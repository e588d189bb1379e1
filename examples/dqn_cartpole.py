"""Train a DQN on CartPole-v1, with a live display and a learning curve."""

from ding_lite import Task, middleware as mw
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, linear, make_envs

TRY_NEXT = """\
Try next: another seed (--seed 1), a harder task (--env Acrobot-v1 --target -100), Ctrl-C and then
--resume --out with its directory, or change this program: examples/dqn_cartpole.py is all of it."""


def main() -> None:
    """Train with the options of the command line."""
    options = parse_options(__doc__, env="CartPole-v1", max_env_steps=50_000, target=475.0)
    envs = make_envs(options.env, num_envs=8, seed=options.seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=options.seed + 1)
    config = DQNConfig(lr=3e-3, hidden=(64, 64), n_step=3, target_tau=0.01, seed=options.seed)
    policy = DQN(envs.spec, config)
    replay = ReplayBuffer(envs.spec, capacity=50_000, seed=options.seed)
    epsilon = linear(1.0, 0.1, steps=5_000)

    with Run("dqn_cartpole", options, config=config) as run:
        with Task() as task:
            parts = {"policy": policy, "replay": replay, "task": task}
            parts |= {"envs": envs, "eval_envs": eval_envs}
            task.use(mw.collect(policy, envs, steps=8, epsilon=epsilon))
            task.use(mw.add_to(replay))
            task.use(mw.train(policy, replay, batch_size=128, updates=8))
            task.use(mw.evaluate(policy, eval_envs, every=125, stop_at=options.target))
            task.use(mw.stop_at(env_step=options.max_env_steps))
            task.use(mw.checkpoint(parts, run.checkpoint, every=250))
            task.use(run.time(task))
            task.use(mw.report(run, every=25, title=f"DQN on {options.env}"))
            run.resume(parts)
            task.run()
        run.conclude(policy, try_next=TRY_NEXT)


if __name__ == "__main__":
    run_program(main)
