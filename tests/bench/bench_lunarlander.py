"""The cost of solving LunarLander with DQN and its preset; needs Box2D."""

from __future__ import annotations

from importlib.util import find_spec

from tests.bench.harness import Row
from tests.bench.solving import Goal, solved_rows

GOAL = Goal(
    policy="dqn",
    env_id="LunarLander-v3",
    eval_every=5_000,
    mode="sync",  # stepped in this process, so that its clock counts them
    times_in_a_row=2,
    num_seeds=3,
    good_slowest=300_000,
    is_tracked=False,
)


def run() -> list[Row]:
    """Land with each seed."""
    return solved_rows(f"{GOAL.env_id} solved", GOAL) if find_spec("Box2D") else []
