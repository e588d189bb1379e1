"""Training runs of DQN, which take minutes until a task is solved."""

import math
from importlib.util import find_spec

import pytest

import ding_lite
from ding_lite.recipes import load_policy
from ding_lite.rl import DQN, DQNConfig, NStep, ReplayBuffer, make_envs, mean_return

pytestmark = pytest.mark.slow


@pytest.mark.deadline(300)
@pytest.mark.parametrize("seed", range(3))
def test_the_best_policy_of_cartpole_is_kept_during_later_learning(seed, tmp_path):
    ding_lite.train(
        "dqn", "CartPole-v1", seed=seed, target=1e6, max_env_steps=40_000, out=tmp_path, quiet=True
    )
    with make_envs("CartPole-v1", 20, seed=5_000 + seed) as envs:
        assert mean_return(load_policy(tmp_path), envs) >= 475.0


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


@pytest.mark.deadline(600)
def test_catch_is_solved_from_pixels():
    envs = make_envs("ding_lite/Catch-v0", 8, seed=0, frame_stack=2)
    eval_envs = make_envs("ding_lite/Catch-v0", 20, seed=1_000, frame_stack=2)
    config = DQNConfig(
        lr=1e-3, n_step=1, hidden=(128,), batch_size=32, epsilon_end=0.05, epsilon_steps=8_000
    )
    policy, replay = DQN(envs.spec, config), ReplayBuffer(envs.spec, capacity=100_000)
    n_step = NStep(policy.n_step, policy.gamma, 8)
    for step in range(1, 5_001):
        replay.add(n_step(envs.step(policy.act(envs.obs))))
        if len(replay) >= 1_000:
            for _ in range(4):
                policy.learn(replay.sample(config.batch_size))
        if step % 500 == 0 and mean_return(policy, eval_envs) >= 9.0:
            return
    pytest.fail("not solved within 40,000 env steps")


NEEDS_BOX2D = [
    pytest.mark.optional,
    pytest.mark.skipif(
        find_spec("Box2D") is None, reason='needs Box2D: pip install "ding-lite[box2d]"'
    ),
]


@pytest.mark.deadline(1_200)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("env_id", "most"),
    [("Acrobot-v1", math.inf), pytest.param("LunarLander-v3", 300_000, marks=NEEDS_BOX2D)],
)
def test_a_harder_task_is_solved_with_every_seed(env_id, most, seed, tmp_path):
    result = ding_lite.train("dqn", env_id, seed=seed, out=tmp_path / "run", quiet=True)
    assert result.solved, result.numbers
    assert result.numbers["env_steps"] <= most
