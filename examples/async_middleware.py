"""Compare a pipeline that writes to disk in order and with `async_mode=True`.

In async mode all middleware of a step run at the same time, and a step takes as long as its
slowest one. Dependent middleware (collect, add_to, train) are one chain, made by `task.serial`;
the writers, which mostly wait for the disk, run beside it as coroutines. Values for the other
branch are kept on the ctx, and read in the next step.
"""

import asyncio
import os
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

from ding_lite import Context, Middleware, Task, middleware as mw
from ding_lite.recipes import Options, Run, parse_options, run_program
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs


def write_through(path: Path, content: bytes) -> None:
    """Write a file and flush it to disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def note_progress(path: Path) -> Middleware:
    """Write the number of env steps to disk in each step."""

    async def _note_progress(ctx: Context) -> None:
        text = f"{ctx.get('env_step', 0)} env steps\n"
        await asyncio.to_thread(write_through, path, text.encode())

    return _note_progress


def mirror_weights(path: Path) -> Middleware:
    """Write the weights of the previous step to disk."""

    async def _mirror_weights(ctx: Context) -> None:
        weights = ctx.get("weights")
        if weights is not None:
            await asyncio.to_thread(write_through, path, weights.tobytes())

    return _mirror_weights


def hand_over_weights(policy: DQN) -> Middleware:
    """Put a copy of the weights on the ctx, because training changes the original."""

    def _hand_over_weights(ctx: Context) -> None:
        ctx.weights = np.concatenate([w.numpy().ravel() for w in policy.weights().values()])
        ctx.keep("weights")

    return _hand_over_weights


def train(options: Options, run: Run, *, async_mode: bool) -> tuple[DQN, float]:
    """Train once; return the policy and the milliseconds that a step took."""
    envs = make_envs(options.env, num_envs=8, seed=options.seed)
    config = DQNConfig(lr=2e-3, hidden=(64, 64), target_tau=0.01, seed=options.seed)
    policy = DQN(envs.spec, config)
    replay = ReplayBuffer(envs.spec, capacity=50_000, seed=options.seed)

    with Task(async_mode=async_mode) as task:
        learn = task.serial(
            mw.collect(policy, envs, steps=8),
            mw.add_to(replay),
            mw.train(policy, replay, updates=8),
            hand_over_weights(policy),
            mw.stop_at(env_step=options.max_env_steps),
        )
        task.use(learn)
        task.use(note_progress(run.directory / "progress.txt"))
        task.use(mirror_weights(run.directory / "weights.bin"))
        task.use(run.time(task, every=100))
        task.use(mw.jsonl(run.metrics, every=100))
        started = perf_counter()
        task.run()
    return policy, 1e3 * (perf_counter() - started) / (task.ctx.total_step + 1)


def main() -> None:
    """Train twice and compare."""
    options = parse_options(__doc__, env="CartPole-v1", max_env_steps=8_000, target=475.0)
    with Run("async_middleware", options) as run:
        _, in_order = train(options, run, async_mode=False)
        sys.stderr.write(f"one after the other: {in_order:.2f} ms a step\n")
        policy, together = train(options, run, async_mode=True)
        sys.stderr.write(f"at the same time:    {together:.2f} ms a step\n")
        run.conclude(policy)


if __name__ == "__main__":
    run_program(main)
