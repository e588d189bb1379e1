"""Training runs: every policy solves its small task within the env steps of its benchmark."""

import pytest

from tests.bench import bench_cartpole, bench_continuous, bench_on_policy
from tests.bench.solving import solve

pytestmark = pytest.mark.slow

GOALS = [
    *((goal.env_id, goal, 40_000, 5) for goal in bench_cartpole.GOALS),
    *((name, goal, 20_000, 3) for name, goal in bench_on_policy.GOALS.items()),
    *((name, goal, 10_000, 3) for name, goal in bench_continuous.GOALS.items()),
]


@pytest.mark.parametrize(
    ("goal", "most", "seed"),
    [
        pytest.param(goal, most, seed, id=f"{name}-{seed}")
        for name, goal, most, num_seeds in GOALS
        for seed in range(num_seeds)
    ],
)
def test_a_task_is_solved_with_every_seed(goal, most, seed):
    assert solve(goal, seed).env_steps <= most
