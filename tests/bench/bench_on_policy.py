"""The cost of A2C, PPO and IMPALA: CartPole solved, an update, and the formulas beneath.

The settings of the solved tasks are those of `ding-lite train`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from ding_lite.rl import PPO, PPOConfig, gae, vtrace
from ding_lite.rl.batch import NumpyArray
from tests.bench.harness import Row, compare
from tests.bench.on_policy_peers import TutorialPPO, plain_gae, plain_vtrace
from tests.bench.solving import Goal, solved_rows
from tests.rl.rollouts import CARTPOLE, draw_rollout

GOALS = {
    name: Goal(
        policy=name,
        env_id="CartPole-v1",
        eval_every=512,
        max_env_steps=50_000,
        good_env_steps=good_env_steps,
        good_seconds=good_seconds,
        good_slowest=40_000,
    )
    for name, good_env_steps, good_seconds in (
        *(("ppo", 12_000, 1.4), ("a2c", 10_000, 1.0), ("impala", None, None)),
    )
}
MAX_UPDATE_RATIO = 0.7
MAX_OWN_RATIO = 0.65
MAX_FORMULA_RATIO = 1.3


def run() -> list[Row]:
    rows = [formula(shape, name) for shape in ((128, 64), (20, 32)) for name in FORMULAS]
    rows += [update(64, 64), update(64, 256), update(64, 64, is_own=True)]
    for name, goal in GOALS.items():
        rows += solved_rows(f"{name.upper()}, {goal.env_id} solved", goal)
    return rows


def update(width: int, batch_size: int, *, is_own: bool = False) -> Row:
    """Hold an update of PPO, from a minibatch of known advantages, against plain torch.

    Args:
        width: Of both hidden layers.
        batch_size: Env steps of the update.
        is_own: Give PPO the very modules of plain torch, in place of its own network.
    """
    config = PPOConfig(hidden=(width, width), epochs=20, batch_size=batch_size)
    plain = TutorialPPO(width)
    parts: Any = {"actor": plain.actor, "critic": plain.critic} if is_own else {}
    policy = PPO(CARTPOLE, config, **copy.deepcopy(parts))
    rollout = draw_rollout(0, CARTPOLE, num_steps=batch_size, num_envs=1, ends=0.0)
    normal = np.random.default_rng(0).normal(size=(3, batch_size)).astype(np.float32)
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


def formula(shape: tuple[int, int], name: str) -> Row:
    ours, plain = FORMULAS[name]
    columns = columns_of(name, shape)
    return compare(
        f"{name}, T={shape[0]}, B={shape[1]}",
        partial(ours, *columns),
        partial(plain, *columns),
        baseline_name="numpy loop over T",
        number=200,
        target=MAX_FORMULA_RATIO,
        tracked=True,
    )


def columns_of(name: str, shape: tuple[int, int]) -> list[NumpyArray]:
    rng = np.random.default_rng(0)
    log_rho, reward, value, next_value = rng.normal(size=(4, *shape)).astype(np.float32)
    discount = np.float32(0.99) * (rng.random(shape) > 0.02).astype(np.float32)
    columns = [discount, reward, value, next_value, rng.random(shape) < 0.01]
    return [0.1 * log_rho, *columns] if name == "V-trace" else columns


FORMULAS: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "GAE": (partial(gae, gae_lambda=0.95), plain_gae),
    "V-trace": (vtrace, plain_vtrace),
}
