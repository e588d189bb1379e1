"""The cost of DDPG, TD3 and SAC: an update beside the same in plain torch, and Pendulum solved.

The plain updates are what a tutorial writes: modules, the default Adam, a soft target update one
tensor at a time. Both sides use one thread, the same sizes and the same batches, and no sampling
is part of them. The settings of the solved task are those of `ding-lite train`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ding_lite.recipes.choices import Choices
from ding_lite.recipes.plan import make_plan
from ding_lite.rl import Policy, make_envs
from tests.bench.continuous_peers import TUTORIALS, own_actor, own_critic
from tests.bench.harness import Row, compare
from tests.bench.solving import Goal, solved_rows
from tests.rl.rollouts import PENDULUM, draw_batch

ENV_ID = "Pendulum-v1"
SIZES = ((128, 64), (64, 64), (256, 256))
"""Batches and widths: our defaults, half the batch, and what is usual for robots."""
MAX_UPDATE_RATIO = 0.7
MAX_ACTION_RATIO = 0.6
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
    """Compare updates of two sizes of network, and reach the goal with each seed."""
    rows = []
    for name in TUTORIALS:
        rows += [row for batch_size, width in SIZES for row in updates(name, batch_size, width)]
        rows.append(update_of_own(name))
    for name, goal in GOALS.items():
        rows += solved_rows(f"{ENV_ID} solved by {name.upper()}", goal)
    return rows


def updates(name: str, batch_size: int, width: int) -> list[Row]:
    """Hold updates and actions against plain torch."""
    plan = make_plan(name, ENV_ID, {"hidden": (width, width)}, Choices())
    batch = draw_batch(0, spec=PENDULUM, size=batch_size)
    policy = plan.recipe.policy(PENDULUM, plan.policy_config)
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
    return rows


def update_of_own(name: str) -> Row:
    """Hold updates of a user's modules against plain torch with modules of the same layers."""
    num_outputs = 2 if name == "sac" else 1
    plan = make_plan(name, ENV_ID, {"hidden": (OWN_WIDTH, OWN_WIDTH)}, Choices())
    batch = draw_batch(0, spec=PENDULUM, size=OWN_BATCH)
    built_in = plan.recipe.policy(PENDULUM, plan.policy_config)
    make: Callable[..., Policy] = type(built_in)
    own = make(
        PENDULUM,
        plan.policy_config,
        actor=lambda _: own_actor(num_outputs, has_tanh=name != "sac"),
        critic=own_critic,
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
