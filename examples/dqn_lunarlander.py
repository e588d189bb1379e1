"""Train a DQN on LunarLander-v3. Needs Box2D: pip install "ding-lite[box2d]"."""

from ding_lite import Task, middleware as mw
from ding_lite.recipes import Run, load_policy, parse_options, run_program
from ding_lite.rl import DQN, DQNConfig, PrioritizedReplay, linear, make_envs

TRY_NEXT = """\
Try next: another seed (--seed 1), a lander in the wind (env_args={"enable_wind": True} in this
program), Ctrl-C and then --resume --out with its directory. It is examples/dqn_lunarlander.py."""


def main() -> None:
    """Train with the options of the command line."""
    options = parse_options(__doc__, env="LunarLander-v3", max_env_steps=300_000, target=200.0)
    # Rewards lie between -100 and 100; reported returns are not scaled. A policy that has learned
    # not to crash hovers for 1,000 env steps: episodes cut at 400 contain more landings.
    envs = make_envs(
        options.env,
        num_envs=8,
        seed=options.seed,
        reward_scale=0.1,
        env_args={"max_episode_steps": 400},
    )
    eval_envs = make_envs(options.env, num_envs=20, seed=options.seed + 1)
    config = DQNConfig(
        lr=5e-4,
        lr_end=1e-4,
        lr_updates=100_000,
        hidden=(256, 256),
        n_step=3,
        loss="mse",
        target_tau=0.005,
        max_grad_norm=10.0,
        epsilon_end=0.05,
        epsilon_steps=50_000,
        seed=options.seed,
    )
    policy = DQN(envs.spec, config)
    # Crashes are rare and have large TD errors: use weak priorities, largely corrected by weights.
    replay = PrioritizedReplay(envs.spec, capacity=100_000, alpha=0.4, seed=options.seed)
    beta = linear(0.6, 1.0, steps=300_000)
    # Higher than the target, so that the fresh episodes of the verdict reach it, too.
    good_enough = options.target + 40.0

    with Run("dqn_lunarlander", options, config=config) as run:
        with Task() as task:
            parts = {"policy": policy, "replay": replay, "task": task}
            parts |= {"envs": envs, "eval_envs": eval_envs}
            task.use(mw.random_warmup(envs, replay, steps=1_000))
            task.use(mw.collect(policy, envs, steps=8))
            task.use(mw.add_to(replay))
            task.use(mw.train(policy, replay, updates=4, beta=beta))
            task.use(mw.update_priorities(replay))
            task.use(
                mw.evaluate(
                    policy,
                    eval_envs,
                    every=625,
                    stop_at=good_enough,
                    confirm=100,
                    confirm_at=options.target,
                )
            )
            task.use(mw.keep_best(policy, run.best))
            task.use(mw.stop_at(env_step=options.max_env_steps))
            task.use(mw.checkpoint(parts, run.checkpoint, every=2_500))
            task.use(run.time(task))
            task.use(mw.report(run, every=25, title=f"DQN on {options.env}"))
            run.resume(parts, stop_at=good_enough)
            task.run()
        # The last policy may be worse than an earlier one: evaluate that of the best evaluation.
        run.conclude(load_policy(run.directory), try_next=TRY_NEXT)


if __name__ == "__main__":
    run_program(main)
