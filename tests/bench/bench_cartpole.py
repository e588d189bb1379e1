"""Env steps and processor time that DQN takes to solve CartPole, with the preset of CartPole-v1."""

from __future__ import annotations

from tests.bench.harness import Row
from tests.bench.solving import Goal, solved_rows

GOALS = (
    Goal(
        policy="dqn",
        env_id="CartPole-v1",
        eval_every=1_000,
        max_env_steps=100_000,
        good_env_steps=15_000,
        good_seconds=8.0,
        good_slowest=40_000,
    ),
    Goal(
        policy="dqn",
        env_id="CartPole-v0",
        eval_every=250,
        max_env_steps=100_000,
        settings={"lr": 3e-3, "capacity": 50_000, "warmup": 0},
        good_env_steps=3_000,
        good_seconds=8.0,
        good_slowest=40_000,
    ),
)


def run() -> list[Row]:
    return [row for goal in GOALS for row in solved_rows(f"{goal.env_id} solved", goal)]
