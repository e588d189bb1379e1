"""Whole runs: minutes of training until a task is solved."""

import pytest

from ding_lite.rl import DQN, NStep, ReplayBuffer, make_envs, mean_return
from tests.bench.bench_cartpole import GOALS, solve

pytestmark = pytest.mark.slow


@pytest.mark.deadline(120)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.env_id)
def test_cartpole_is_solved_with_every_seed(goal, seed):
    assert solve(goal, seed).env_steps <= 40_000


@pytest.mark.deadline(300)
@pytest.mark.parametrize("seed", range(2))
def test_the_defaults_solve_cartpole_with_one_update_every_eight_env_steps(seed):
    envs = make_envs("CartPole-v1", 8, seed=seed)
    eval_envs = make_envs("CartPole-v1", 20, seed=seed + 1_000)
    policy, replay = DQN(envs.spec), ReplayBuffer(envs.spec, capacity=50_000, seed=seed)
    n_step = NStep(policy.n_step, policy.gamma, 8)
    for step in range(1, 20_001):
        replay.add(n_step(envs.step(policy.act(envs.obs))))
        if len(replay) >= policy.config.batch_size:
            policy.learn(replay.sample(policy.config.batch_size))
        if step % 250 == 0 and mean_return(policy, eval_envs) >= 475.0:
            return
    pytest.fail("not solved within 160,000 env steps")
