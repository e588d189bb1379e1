"""The cost of A2C, PPO and IMPALA: CartPole solved, an update, and the formulas beneath.

Solved means that 20 greedy episodes return 475 on average. Evaluation is in neither count. The
settings are the defaults, those of `ding-lite train`. Stable-Baselines3 solves the same, with its
zoo's values and the same seeds, where it is installed.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from ding_lite import Task, middleware as mw
from ding_lite.recipes.plan import Choices, make_plan
from ding_lite.rl import PPO, PPOConfig, Rollout, gae, make_envs, mean_return, vtrace
from tests.bench.harness import Row, compare, row_from_samples
from tests.bench.on_policy_peers import (
    Solved,
    TutorialPPO,
    plain_gae,
    plain_vtrace,
    sb3_solve,
    sb3_version,
)

SEEDS = range(5)
TARGET = 475.0
EVAL_EVERY = 512
MAX_ENV_STEPS = 50_000
NUM_EVAL_EPISODES = 20
GOALS = {"ppo": (12_000, 1.4), "a2c": (10_000, 1.0), "impala": (None, None)}
"""Env steps and seconds of CPU that are good enough."""
MAX_SLOWEST = 40_000
MAX_UPDATE_RATIO = 0.7
MAX_OWN_RATIO = 0.65
MAX_FORMULA_RATIO = 1.3


def run() -> list[Row]:
    """Solve CartPole with each policy; compare updates and formulas."""
    rows = [formula(shape, name) for shape in ((128, 64), (20, 32)) for name in FORMULAS]
    rows += [update(64, 64), update(64, 256), update(64, 64, is_own=True)]
    for name in GOALS:
        rows += solved_rows(name)
    return rows


def solved_rows(name: str) -> list[Row]:
    """Reach the goal with each seed, and let others do so."""
    solved = in_processes(solve, name)
    env_steps = [one.env_steps for one in solved]
    good_env_steps, good_seconds = GOALS[name]
    named = f"{name.upper()}, CartPole-v1 solved"
    rows = [
        row_from_samples(
            f"{named}, median of {len(SEEDS)} seeds",
            env_steps,
            unit="env steps",
            target=good_env_steps,
            tracked=True,
        ),
        row_from_samples(
            f"{named}, CPU, median of {len(SEEDS)} seeds",
            [one.seconds for one in solved],
            unit="s",
            target=good_seconds,
        ),
    ]
    slowest = replace(rows[0], name=f"{named}, slowest of {len(SEEDS)} seeds", tracked=False)
    rows.append(replace(slowest, median=max(env_steps), target=MAX_SLOWEST))
    version = sb3_version()
    if version is not None and name != "impala":
        theirs = in_processes(solve_elsewhere, name)
        rows += [
            row_from_samples(
                f"{named} by SB3 {version}", [one.env_steps for one in theirs], unit="env steps"
            ),
            row_from_samples(
                f"{named} by SB3 {version}, CPU", [one.seconds for one in theirs], unit="s"
            ),
        ]
    return rows


def in_processes(solve_one: Callable[[str, int], Solved], name: str) -> list[Solved]:
    """Solve with each seed in a process of its own, so that each starts cold."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        return list(pool.map(solve_one, [name] * len(SEEDS), SEEDS))


def solve(name: str, seed: int) -> Solved:
    """Train until solved; an unsolved goal counts as the most env steps it was given."""
    plan = make_plan(name, "CartPole-v1", {}, Choices(seed=seed))
    envs = make_envs("CartPole-v1", plan.options.num_envs, seed=seed)
    eval_envs = make_envs("CartPole-v1", NUM_EVAL_EPISODES, seed=1_000_000 + seed)
    policy: Any = plan.recipe.policy(envs.spec, plan.policy_config)
    unroll = plan.settings["unroll"]
    steps = max(1, round(EVAL_EVERY / (unroll * envs.num_envs)))
    seconds, env_steps = 0.0, 0

    with Task() as task:
        task.use(mw.collect(policy, envs, unroll=unroll))
        task.use(mw.train(policy))
        while env_steps < MAX_ENV_STEPS:
            started = time.process_time()
            task.run(max_step=steps)
            seconds += time.process_time() - started
            env_steps = task.ctx.env_step
            if mean_return(policy, eval_envs) >= TARGET:
                return Solved(env_steps, seconds)
    return Solved(MAX_ENV_STEPS, seconds)


def solve_elsewhere(name: str, seed: int) -> Solved:
    """Let Stable-Baselines3 do the same."""
    return sb3_solve(name, seed, target=TARGET, eval_every=EVAL_EVERY, max_env_steps=MAX_ENV_STEPS)


def update(width: int, batch_size: int, *, is_own: bool = False) -> Row:
    """Hold an update of PPO, from a minibatch of known advantages, against plain torch.

    Args:
        width: Of both hidden layers.
        batch_size: Env steps of the update.
        is_own: Give PPO the very modules of plain torch, in place of its own network.
    """
    spec, rng = make_envs("CartPole-v1", 1).spec, np.random.default_rng(0)
    config = PPOConfig(hidden=(width, width), epochs=20, batch_size=batch_size)
    plain = TutorialPPO(width)
    parts: Any = {"actor": plain.actor, "critic": plain.critic} if is_own else {}
    policy = PPO(spec, config, **copy.deepcopy(parts))
    rollout = random_rollout(rng, batch_size)
    normal = rng.normal(size=(3, batch_size)).astype(np.float32)
    rows = {
        "obs": torch.from_numpy(rollout.obs[:, 0]),
        "action": torch.from_numpy(rollout.action[:, 0]),
        **dict(zip(("log_prob", "advantage", "target"), torch.from_numpy(normal), strict=True)),
    }

    def learn_plainly() -> None:
        for _ in range(config.epochs):
            plain.learn(rows)

    of_whom = " of a user's nn.Modules" if is_own else ""
    return compare(
        f"PPO update{of_whom}, batch {batch_size}, hidden {width}x{width}",
        partial(policy.learn, [rollout]),
        learn_plainly,
        baseline_name="plain torch, default Adam",
        number=2,
        per=config.epochs,
        target=MAX_OWN_RATIO if is_own else MAX_UPDATE_RATIO,
        tracked=batch_size == 64,
    )


def random_rollout(rng: np.random.Generator, num_steps: int) -> Rollout:
    """Draw a rollout of a single environment, without an end."""
    flags, none = np.zeros((num_steps, 1), dtype=np.bool_), np.zeros(0, dtype=np.int64)
    return Rollout(
        obs=rng.normal(size=(num_steps, 1, 4)).astype(np.float32),
        action=rng.integers(0, 2, (num_steps, 1)),
        reward=np.ones((num_steps, 1), dtype=np.float32),
        terminated=flags,
        truncated=flags,
        log_prob=np.full((num_steps, 1), -0.7, dtype=np.float32),
        last_obs=np.zeros((1, 4), dtype=np.float32),
        cut_time=none,
        cut_env=none,
        cut_obs=np.zeros((0, 4), dtype=np.float32),
    )


def formula(shape: tuple[int, int], name: str) -> Row:
    """Hold a formula against the usual loop."""
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(4, *shape)).astype(np.float32)
    log_rho, reward, value, next_value = normal
    discount = np.float32(0.99) * (rng.random(shape) > 0.02).astype(np.float32)
    truncated = rng.random(shape) < 0.01
    given = (discount, reward, value, next_value, truncated)
    ours, plain, takes_rho = FORMULAS[name]
    inputs = (0.1 * log_rho, *given) if takes_rho else given
    return compare(
        f"{name}, T={shape[0]}, B={shape[1]}",
        partial(ours, *inputs),
        partial(plain, *inputs),
        baseline_name="numpy loop over T",
        number=200,
        target=MAX_FORMULA_RATIO,
        tracked=True,
    )


FORMULAS: dict[str, tuple[Callable[..., object], Callable[..., object], bool]] = {
    "GAE": (partial(gae, gae_lambda=0.95), plain_gae, False),
    "V-trace": (vtrace, plain_vtrace, True),
}


if __name__ == "__main__":
    for row in run():
        print(row)
