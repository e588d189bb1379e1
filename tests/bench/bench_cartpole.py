"""Env steps and processor time that DQN takes to solve CartPole.

Solved means that 20 greedy episodes return 475 (CartPole-v0: 195) on average. Evaluation is in
neither count. The settings are those of examples/dqn_cartpole.py.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from ding_lite import Task, middleware as mw
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs, mean_return
from tests.bench.harness import Row, row_from_samples

SEEDS = range(5)
CONFIG = DQNConfig(
    lr=3e-3, hidden=(64, 64), n_step=3, batch_size=128, target_tau=0.01, epsilon_end=0.1
)
CAPACITY = 50_000
NUM_ENVS = 8
UPDATES_PER_STEP = 8
NUM_EVAL_EPISODES = 20


@dataclass(frozen=True)
class Goal:
    """The task, the period of evaluations, and the return that counts as solved."""

    env_id: str
    target: float
    eval_every: int
    max_env_steps: int
    good_env_steps: float
    good_seconds: float


GOALS = (
    Goal("CartPole-v1", 475.0, 1_000, 100_000, 15_000, 8.0),
    Goal("CartPole-v0", 195.0, 250, 100_000, 3_000, 8.0),
)


@dataclass(frozen=True)
class Solved:
    """The cost of a run."""

    env_steps: int
    seconds: float


def run() -> list[Row]:
    """Reach each goal with each seed."""
    rows = []
    for goal in GOALS:
        # A process for each seed, so that each starts cold.
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            solved = list(pool.map(solve, [goal] * len(SEEDS), SEEDS))
        env_steps = [one.env_steps for one in solved]
        rows += [
            row_from_samples(
                f"{goal.env_id} solved, median of {len(SEEDS)} seeds",
                env_steps,
                unit="env steps",
                target=goal.good_env_steps,
                tracked=True,
            ),
            row_from_samples(
                f"{goal.env_id} solved, CPU, median of {len(SEEDS)} seeds",
                [one.seconds for one in solved],
                unit="s",
                target=goal.good_seconds,
            ),
        ]
        slowest = replace(rows[-2], name=f"{goal.env_id} solved, slowest of {len(SEEDS)} seeds")
        rows.append(replace(slowest, median=max(env_steps), target=40_000, tracked=False))
    return rows


def solve(goal: Goal, seed: int) -> Solved:
    """Train until solved; an unsolved goal counts as the most env steps it was given."""
    envs = make_envs(goal.env_id, NUM_ENVS, seed=seed)
    eval_envs = make_envs(goal.env_id, NUM_EVAL_EPISODES, seed=1_000_000 + seed)
    policy = DQN(envs.spec, replace(CONFIG, seed=seed))
    replay = ReplayBuffer(envs.spec, capacity=CAPACITY, seed=seed)
    seconds = 0.0

    with Task() as task:
        task.use(mw.collect(policy, envs, steps=NUM_ENVS))
        task.use(mw.add_to(replay))
        task.use(mw.train(policy, replay, updates=UPDATES_PER_STEP))
        while policy.env_step < goal.max_env_steps:
            started = time.process_time()
            task.run(max_step=math.ceil(goal.eval_every / NUM_ENVS))
            seconds += time.process_time() - started
            if mean_return(policy, eval_envs) >= goal.target:
                return Solved(policy.env_step, seconds)
    return Solved(goal.max_env_steps, seconds)


if __name__ == "__main__":
    for row in run():
        print(row)
