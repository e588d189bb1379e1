"""Train a DQN from pixels, on a built-in game: catch falling balls."""

from ding_lite import Task, middleware as mw
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, linear, make_envs

TRY_NEXT = """\
Try next: what it sees with one picture instead of two (frame_stack=1), another seed (--seed 1),
Ctrl-C and then --resume --out with its directory. This program is examples/dqn_pixels.py."""


def main() -> None:
    """Train with the options of the command line."""
    options = parse_options(__doc__, env="ding_lite/Catch-v0", max_env_steps=100_000, target=9.0)
    envs = make_envs(options.env, num_envs=8, seed=options.seed, frame_stack=2)
    eval_envs = make_envs(options.env, num_envs=20, seed=options.seed + 1, frame_stack=2)
    config = DQNConfig(lr=1e-3, n_step=1, hidden=(128,), batch_size=32, seed=options.seed)
    policy = DQN(envs.spec, config)
    replay = ReplayBuffer(envs.spec, capacity=100_000, seed=options.seed)
    epsilon = linear(1.0, 0.05, steps=8_000)

    with Run("dqn_pixels", options, config=config) as run:
        with Task() as task:
            parts = {"policy": policy, "replay": replay, "task": task}
            parts |= {"envs": envs, "eval_envs": eval_envs}
            task.use(mw.collect(policy, envs, steps=8, epsilon=epsilon))
            task.use(mw.add_to(replay))
            task.use(mw.wait_for(replay, size=1_000))
            task.use(mw.train(policy, replay, updates=4))
            task.use(mw.evaluate(policy, eval_envs, every=500, stop_at=options.target))
            task.use(mw.stop_at(env_step=options.max_env_steps))
            task.use(mw.checkpoint(parts, run.checkpoint, every=2_500))
            task.use(run.time(task))
            task.use(mw.report(run, every=25, title=f"DQN on {options.env}"))
            run.resume(parts)
            task.run()
        run.conclude(policy, try_next=TRY_NEXT)


if __name__ == "__main__":
    run_program(main)
