"""The cost of DDPG, TD3 and SAC: an update beside the same in plain torch, and Pendulum solved.

The plain updates are what a tutorial writes: modules, the default Adam, a soft target update one
tensor at a time. Both sides use one thread, the same sizes and the same batches, and no sampling
is part of them. Solved means that 20 greedy episodes return -200 on average; evaluation is in
neither count. The settings are those of `ding-lite train`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

import numpy as np

from ding_lite import Task, middleware as mw
from ding_lite.recipes.off_policy import OffPolicyConfig
from ding_lite.recipes.plan import Choices, make_plan
from ding_lite.rl import Policy, ReplayBuffer, make_envs, mean_return
from tests.bench.continuous_peers import (
    TUTORIALS,
    OwnActor,
    OwnCritic,
    random_batch,
    sb3_update,
    sb3_version,
)
from tests.bench.harness import Row, compare, row_from_samples

ENV_ID = "Pendulum-v1"
TARGET = -200.0
SIZES = ((128, 64), (64, 64), (256, 256))
"""Batches and widths: our defaults, half the batch, and what is usual for robots."""
MAX_UPDATE_RATIO = 0.7
MAX_ACTION_RATIO = 0.6
OWN_BATCH, OWN_WIDTH = 64, 64
MAX_OWN_RATIO = 0.65
SEEDS = range(5)
NUM_EVAL_EPISODES = 20
EVAL_EVERY = 250
MAX_ENV_STEPS = 20_000
GOOD_ENV_STEPS = 5_000


@dataclass(frozen=True)
class Solved:
    """The cost of a run."""

    env_steps: int
    seconds: float


def run() -> list[Row]:
    """Compare updates of two sizes of network, and reach the goal with each seed."""
    rows = []
    for name in TUTORIALS:
        rows += [row for batch_size, width in SIZES for row in updates(name, batch_size, width)]
        rows.append(update_of_own(name))
    for name in TUTORIALS:
        rows += pendulum(name)
    return rows


def updates(name: str, batch_size: int, width: int) -> list[Row]:
    """Hold updates and actions against plain torch, and updates against SB3 where that is."""
    plan = make_plan(name, ENV_ID, {"hidden": (width, width)}, Choices())
    spec, batch = make_envs(ENV_ID, 1).spec, random_batch(batch_size)
    policy = plan.recipe.policy(spec, plan.policy_config)
    plain = TUTORIALS[name](policy.clone(), np.random.default_rng(0))
    named = f"{name.upper()} update, batch {batch_size}, hidden {width}x{width}"
    number = 8 if width > 64 else 40
    rows = [
        compare(
            named,
            partial(policy.learn, batch),
            partial(plain.learn, batch),
            baseline_name="plain torch, default Adam",
            number=number,
            target=MAX_UPDATE_RATIO,
            tracked=width == 64,
        )
    ]
    if (batch_size, width) == SIZES[0]:
        obs = make_envs(ENV_ID, plan.options.num_envs).obs
        rows.append(
            compare(
                f"{name.upper()} explored action, {len(obs)} envs, hidden {width}x{width}",
                partial(policy.act, obs),
                partial(plain.act, obs),
                baseline_name="plain torch, no_grad",
                number=500,
                target=MAX_ACTION_RATIO,
            )
        )
    version = sb3_version()
    if version is not None:
        rows.append(
            compare(
                f"{named}, beside SB3",
                partial(policy.learn, batch),
                sb3_update(name, batch, width=width),
                baseline_name=f"stable-baselines3 {version}",
                number=number,
                target=MAX_UPDATE_RATIO,
            )
        )
    return rows


def update_of_own(name: str) -> Row:
    """Hold updates of a user's modules against plain torch with modules of the same layers."""
    num_outputs = 2 if name == "sac" else 1
    plan = make_plan(name, ENV_ID, {"hidden": (OWN_WIDTH, OWN_WIDTH)}, Choices())
    spec, batch = make_envs(ENV_ID, 1).spec, random_batch(OWN_BATCH)
    built_in = plan.recipe.policy(spec, plan.policy_config)
    make: Callable[..., Policy] = type(built_in)
    own = make(
        spec,
        plan.policy_config,
        actor=lambda _: OwnActor(num_outputs, has_tanh=name != "sac"),
        critic=OwnCritic,
    )
    plain = TUTORIALS[name](built_in, np.random.default_rng(0))
    return compare(
        f"{name.upper()} update of a user's nn.Modules, batch {OWN_BATCH}, "
        f"hidden {OWN_WIDTH}x{OWN_WIDTH}",
        partial(own.learn, batch),
        partial(plain.learn, batch),
        baseline_name="plain torch, default Adam",
        number=40,
        target=MAX_OWN_RATIO if name == "sac" else None,
        tracked=True,
    )


def pendulum(name: str) -> list[Row]:
    """Solve Pendulum with each seed."""
    # A process for each seed, so that each starts cold.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        solved = list(pool.map(solve, [name] * len(SEEDS), SEEDS))
    named = f"{ENV_ID} solved by {name.upper()}"
    env_steps = [one.env_steps for one in solved]
    median = row_from_samples(
        f"{named}, median of {len(SEEDS)} seeds",
        env_steps,
        unit="env steps",
        target=GOOD_ENV_STEPS,
        tracked=True,
    )
    seconds = row_from_samples(
        f"{named}, CPU, median of {len(SEEDS)} seeds", [one.seconds for one in solved], unit="s"
    )
    slowest = replace(
        median,
        name=f"{named}, slowest of {len(SEEDS)} seeds",
        median=max(env_steps),
        target=0.75 * MAX_ENV_STEPS,
        tracked=False,
    )
    return [median, seconds, slowest]


def solve(name: str, seed: int) -> Solved:
    """Train until solved; an unsolved goal counts as the most env steps it was given."""
    plan = make_plan(name, ENV_ID, {}, Choices(seed=seed))
    config = plan.config
    assert isinstance(config, OffPolicyConfig)
    envs = make_envs(ENV_ID, plan.options.num_envs, seed=seed, mode="sync")
    eval_envs = make_envs(ENV_ID, NUM_EVAL_EPISODES, seed=1_000_000 + seed, mode="sync")
    policy = plan.recipe.policy(envs.spec, plan.policy_config)
    replay = ReplayBuffer(envs.spec, capacity=config.capacity, seed=seed)
    seconds = 0.0

    with Task() as task:
        task.use(mw.random_warmup(envs, replay, steps=config.warmup))
        task.use(mw.collect(policy, envs, steps=plan.options.num_envs))
        task.use(mw.add_to(replay))
        task.use(mw.train(policy, replay, updates=plan.options.num_envs))
        while len(replay) < MAX_ENV_STEPS:
            started = time.process_time()
            task.run(max_step=math.ceil(EVAL_EVERY / plan.options.num_envs))
            seconds += time.process_time() - started
            if mean_return(policy, eval_envs) >= TARGET:
                return Solved(task.ctx.env_step, seconds)
    return Solved(MAX_ENV_STEPS, seconds)


if __name__ == "__main__":
    for row in run():
        print(row)
