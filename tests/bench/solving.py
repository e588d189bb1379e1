"""The env steps and the processor time that `ding-lite train` takes to solve a task.

Solved means that the mean return of 20 greedy episodes reaches the target. Evaluations are in
neither count. An unsolved run counts as the most env steps that it was given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Any, cast

from ding_lite import Task
from ding_lite.recipes.choices import Choices
from ding_lite.recipes.plan import make_plan
from ding_lite.recipes.train_config import SingleConfig
from ding_lite.rl import make_envs, mean_return
from ding_lite.rl.envs.vector import EnvsMode
from tests.bench.harness import Row, row_from_samples

SEEDS = range(5)
NUM_EVAL_EPISODES = 20


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A task, the period of its evaluations, and the costs that are good enough."""

    policy: str
    env_id: str
    eval_every: int
    max_env_steps: int | None = None
    """The most env steps; by default those of the preset."""
    target: float | None = None
    """The return that counts as solved; by default that of the environment."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from those of the preset."""
    mode: EnvsMode = "auto"
    good_env_steps: float | None = None
    good_seconds: float | None = None
    good_slowest: float | None = None
    """Env steps of the slowest seed."""


@dataclass(frozen=True)
class Solved:
    env_steps: int
    seconds: float


def solve(goal: Goal, seed: int) -> Solved:
    choices = Choices(seed=seed, max_env_steps=goal.max_env_steps, target=goal.target)
    plan = make_plan(goal.policy, goal.env_id, goal.settings, choices)
    config, options, seconds = cast(SingleConfig, plan.config), plan.options, 0.0
    with (
        make_envs(
            goal.env_id, options.num_envs, seed=seed, mode=goal.mode, **config.learning_from
        ) as envs,
        make_envs(
            goal.env_id, NUM_EVAL_EPISODES, seed=1_000_000 + seed, mode=goal.mode
        ) as eval_envs,
        Task() as task,
    ):
        policy = plan.make_policy(envs.spec)
        config.learn(task, policy, envs, seed=seed)
        steps = math.ceil(goal.eval_every / config.steps_per_update(envs.num_envs))
        while task.ctx.get("env_step", 0) < options.max_env_steps:
            started = time.process_time()
            task.run(max_step=steps)
            seconds += time.process_time() - started
            if mean_return(policy, eval_envs) >= options.target:
                return Solved(task.ctx.env_step, seconds)
    return Solved(options.max_env_steps, seconds)


def solved_rows(name: str, goal: Goal) -> list[Row]:
    """Solve a task with each seed, in a process of its own, so that each starts cold."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        solved = list(pool.map(partial(solve, goal), SEEDS))
    env_steps, count = [one.env_steps for one in solved], f"{len(SEEDS)} seeds"
    median = row_from_samples(
        f"{name}, median of {count}",
        env_steps,
        unit="env steps",
        target=goal.good_env_steps,
        tracked=True,
    )
    seconds = row_from_samples(
        f"{name}, CPU, median of {count}",
        [one.seconds for one in solved],
        unit="s",
        target=goal.good_seconds,
    )
    slowest = replace(
        median,
        name=f"{name}, slowest of {count}",
        median=max(env_steps),
        target=goal.good_slowest,
        tracked=False,
    )
    return [median, seconds, slowest]
