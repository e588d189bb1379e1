"""The cost of DDPG, TD3 and SAC: an update beside the same in plain torch, and Pendulum solved.

The plain updates are what a tutorial writes: modules, the default Adam, a soft target update one
tensor at a time. Both sides use one thread, the same sizes and the same batches, and no sampling
is part of them. The settings of the solved task are those of `ding-lite train`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ding_lite.recipes.choices import Choices
from ding_lite.recipes.plan import make_plan
from ding_lite.rl import make_envs
from tests.bench.continuous_peers import TUTORIALS, own_actor, own_critic
from tests.bench.harness import Row, compare
from tests.bench.solving import Goal, solved_rows
from tests.rl.rollouts import PENDULUM, draw_batch

ENV_ID = "Pendulum-v1"
SIZES = ((128, 64), (64, 64), (256, 256))
"""Batches and widths: our defaults, half the batch, and what is usual for robots."""
MAX_UPDATE_RATIO = 0.7
NUM_ENVS, ACTING_WIDTH, MAX_ACTION_RATIO = 8, 64, 0.6
OWN_BATCH, OWN_WIDTH = 64, 64
MAX_OWN_RATIO = 0.65
GOALS = {
    name: Goal(
        policy=name,
        env_id=ENV_ID,
        eval_every=250,
        max_env_steps=20_000,
        mode="sync",
        good_env_steps=5_000,
        good_slowest=15_000,
    )
    for name in TUTORIALS
}


def run() -> list[Row]:
    rows = []
    for name in TUTORIALS:
        rows += [update(name, batch_size, width) for batch_size, width in SIZES]
        rows += [update(name, OWN_BATCH, OWN_WIDTH, is_own=True), action(name)]
    for name, goal in GOALS.items():
        rows += solved_rows(f"{ENV_ID} solved by {name.upper()}", goal)
    return rows


def sides(name: str, width: int) -> tuple[Any, Any]:
    """Make a policy and its tutorial, with the same weights."""
    plan = make_plan(name, ENV_ID, {"hidden": (width, width)}, Choices())
    policy: Any = plan.recipe.policy(PENDULUM, plan.policy_config)
    return policy, TUTORIALS[name](policy.clone(), np.random.default_rng(0))


def update(name: str, batch_size: int, width: int, *, is_own: bool = False) -> Row:
    """Hold updates, of built-in networks or of a user's modules, against plain torch."""
    policy, plain = sides(name, width)
    target: float | None = MAX_UPDATE_RATIO
    if is_own:
        is_sac = name == "sac"
        target = MAX_OWN_RATIO if is_sac else None
        policy = type(policy)(
            PENDULUM,
            policy.config,
            actor=lambda _: own_actor(2 if is_sac else 1, has_tanh=not is_sac),
            critic=own_critic,
        )
    batch = draw_batch(0, spec=PENDULUM, size=batch_size)
    of_whom = " of a user's nn.Modules" if is_own else ""
    return compare(
        f"{name.upper()} update{of_whom}, batch {batch_size}, hidden {width}x{width}",
        partial(policy.learn, batch),
        partial(plain.learn, batch),
        baseline_name="plain torch, default Adam",
        number=8 if width > 64 else 40,
        target=target,
        tracked=width == 64,
    )


def action(name: str) -> Row:
    policy, plain = sides(name, ACTING_WIDTH)
    obs = make_envs(ENV_ID, NUM_ENVS).obs
    return compare(
        f"{name.upper()} explored action, {NUM_ENVS} envs, hidden {ACTING_WIDTH}x{ACTING_WIDTH}",
        partial(policy.act, obs),
        partial(plain.act, obs),
        baseline_name="plain torch, no_grad",
        number=500,
        target=MAX_ACTION_RATIO,
    )
