"""The cost of solving LunarLander with DQN, beside Stable-Baselines3 at the same env steps.

Solved means that 20 greedy episodes return 200 on average, and 20 fresh ones again. Evaluation is
in neither count. The settings are those of `ding-lite train dqn LunarLander-v3`; the other side's
are those of its own zoo. It does one update for each env step from the first one on, so that some
thousand env steps tell what each costs. Needs Box2D; the comparison also stable-baselines3.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing import get_context
from statistics import median, quantiles

import gymnasium

from ding_lite import Task
from ding_lite.recipes.plan import Choices, make_plan
from ding_lite.recipes.recipe import Ingredients
from ding_lite.rl import make_envs, mean_return
from tests.bench.harness import Row, Unit
from tests.bench.replay_peers import is_installed, version_of

ENV_ID = "LunarLander-v3"
SEEDS = range(3)
NUM_EVAL_EPISODES = 20
GOOD_ENV_STEPS = 300_000

ZOO = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "gamma": 0.99,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
    "policy_kwargs": {"net_arch": [256, 256]},
}
"""Stable-Baselines3's settings for LunarLander, from RL Baselines3 Zoo."""
ZOO_ENV_STEPS = 100_000
PEER = "stable-baselines3"
PEER_ENV_STEPS = 8_000


@dataclass(frozen=True)
class Solved:
    """The cost of a run."""

    env_steps: int
    seconds: float
    peer_seconds: float | None
    """The cost of as many env steps of Stable-Baselines3; None where it is not installed."""


def run() -> list[Row]:
    """Land with each seed."""
    if not is_installed("Box2D"):
        return []
    # A process for each seed, so that each starts cold.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        solved = list(pool.map(solve_beside, SEEDS))
    env_steps, seconds = (
        [getattr(one, name) for one in solved] for name in ("env_steps", "seconds")
    )
    count = f"{len(SEEDS)} seeds"
    in_steps = _row(f"{ENV_ID} solved, median of {count}", env_steps, unit="env steps")
    slowest = replace(
        in_steps,
        name=f"{ENV_ID} solved, slowest of {count}",
        median=max(env_steps),
        target=GOOD_ENV_STEPS,
    )
    in_seconds = _row(f"{ENV_ID} solved, CPU, median of {count}", seconds, unit="s")
    theirs = [one.peer_seconds for one in solved if one.peer_seconds is not None]
    if theirs:
        in_seconds = replace(
            in_seconds,
            baseline=median(theirs),
            baseline_name=f"{version_of(PEER)} DQN, for as many env steps",
            ratio=median(a / b for a, b in zip(seconds, theirs, strict=True)),
            target=1.0,
        )
    return [in_steps, in_seconds, slowest]


def solve_beside(seed: int) -> Solved:
    """Train until solved, and tell what the other side takes for as many env steps."""
    env_steps, seconds = solve(seed)
    peer = peer_seconds(seed) * env_steps / PEER_ENV_STEPS if is_installed(PEER) else None
    return Solved(env_steps, seconds, peer)


def solve(seed: int) -> tuple[int, float]:
    """Train until solved; return the env steps, and the CPU seconds without evaluation.

    An unsolved run counts as the most env steps that it is given. The environments are stepped in
    this process, and its clock then counts them.
    """
    plan = make_plan("dqn", ENV_ID, {}, Choices(seed=seed))
    config, target, most = plan.config, plan.options.target, plan.options.max_env_steps
    seconds, env_steps = 0.0, 0
    with (
        make_envs(
            ENV_ID,
            plan.options.num_envs,
            seed=seed,
            mode="sync",
            reward_scale=config.reward_scale,
            env_args=config.env_settings,
        ) as envs,
        make_envs(ENV_ID, NUM_EVAL_EPISODES, seed=1_000_000 + seed, mode="sync") as eval_envs,
        Task() as task,
    ):
        policy = plan.recipe.policy(envs.spec, plan.policy_config)
        given = Ingredients(policy=policy, envs=envs, config=config, seed=seed)
        plan.recipe.learn(task, given)
        steps = math.ceil(config.eval_every / config.steps_per_update(envs.num_envs))
        while env_steps < most:
            started = time.process_time()
            task.run(max_step=steps)
            seconds += time.process_time() - started
            env_steps = task.ctx.env_step
            # The best of many noisy evaluations flatters: the second one decides.
            if all(mean_return(policy, eval_envs) >= target for _ in range(2)):
                break
    return min(env_steps, most), seconds


def peer_seconds(seed: int) -> float:
    """Return the CPU seconds of the first env steps of Stable-Baselines3's DQN."""
    library, env = import_module(PEER.replace("-", "_")), gymnasium.make(ENV_ID)
    model = library.DQN("MlpPolicy", env, seed=seed, device="cpu", **ZOO)

    def go_on(*_: object) -> bool:
        return bool(model.num_timesteps < PEER_ENV_STEPS)

    started = time.process_time()
    model.learn(ZOO_ENV_STEPS, callback=go_on)
    seconds = time.process_time() - started
    env.close()
    return seconds


def _row(name: str, samples: Sequence[float], *, unit: Unit, target: float | None = None) -> Row:
    """Make a row of as many samples as there are seeds."""
    quarter, _, three_quarters = quantiles(samples, n=4, method="inclusive")
    return Row(
        name=name,
        unit=unit,
        median=median(samples),
        spread=three_quarters - quarter,
        n=len(samples),
        target=target,
    )
