"""Training runs: DDPG, TD3 and SAC solve Pendulum."""

import pytest

from tests.bench.bench_continuous import GOALS
from tests.bench.solving import solve

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", GOALS)
def test_pendulum_is_solved_with_every_seed(name, seed):
    assert solve(GOALS[name], seed).env_steps <= 10_000
