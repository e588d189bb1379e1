"""Training runs of A2C, PPO and IMPALA, until a task is solved."""

import pytest

from tests.bench.bench_on_policy import GOALS
from tests.bench.solving import solve

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", GOALS)
def test_cartpole_is_solved_with_every_seed(name, seed):
    assert solve(GOALS[name], seed).env_steps <= 20_000
