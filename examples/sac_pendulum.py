"""Train a SAC on Pendulum-v1, with continuous actions."""

from ding_lite import Task, middleware as mw
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import SAC, ReplayBuffer, SACConfig, make_envs

TRY_NEXT = """\
Try next: another seed (--seed 1), TD3 or DDPG in place of SAC in this program, Ctrl-C and then
--resume --out with its directory. It is examples/sac_pendulum.py."""


def main() -> None:
    """Train with the options of the command line."""
    options = parse_options(__doc__, env="Pendulum-v1", max_env_steps=20_000, target=-200.0)
    envs = make_envs(options.env, num_envs=8, seed=options.seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=options.seed + 1)
    config = SACConfig(actor_lr=1e-3, critic_lr=3e-3, target_tau=0.02, seed=options.seed)
    policy = SAC(envs.spec, config)
    replay = ReplayBuffer(envs.spec, capacity=100_000, seed=options.seed)

    with Run("sac_pendulum", options, config=config) as run:
        with Task() as task:
            parts = {"policy": policy, "replay": replay, "task": task}
            parts |= {"envs": envs, "eval_envs": eval_envs}
            task.use(mw.random_warmup(envs, replay, steps=500))
            task.use(mw.collect(policy, envs, steps=8))
            task.use(mw.add_to(replay))
            task.use(mw.train(policy, replay, updates=8))
            # A little above the target, so that another 20 episodes will reach it, too.
            goal = options.target + 20.0
            task.use(mw.evaluate(policy, eval_envs, every=60, stop_at=goal, confirm=100))
            task.use(mw.stop_at(env_step=options.max_env_steps))
            task.use(mw.checkpoint(parts, run.checkpoint, every=250))
            task.use(run.time(task))
            task.use(mw.report(run, every=25, title=f"SAC on {options.env}"))
            run.resume(parts, stop_at=goal)
            task.run()
        run.conclude(policy, try_next=TRY_NEXT)


if __name__ == "__main__":
    run_program(main)
