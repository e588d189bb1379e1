import numpy as np
from measuring import cost_of, settings, tell

from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, Transitions, make_envs

size = settings()
envs, rng, rows = make_envs("CartPole-v1", 1), np.random.default_rng(0), 20_000
policy = DQN(envs.spec, DQNConfig(hidden=(size["width"],) * 2, n_step=1, gamma=0.99))
replay = ReplayBuffer(envs.spec, capacity=rows)
replay.add(
    Transitions(
        obs=rng.normal(size=(rows, 4)).astype(np.float32),
        action=rng.integers(0, 2, size=rows),
        reward=rng.random(rows).astype(np.float32),
        next_obs=rng.normal(size=(rows, 4)).astype(np.float32),
        terminated=rng.random(rows) < 0.1,
        truncated=np.zeros(rows, dtype=np.bool_),
        num_steps=np.ones(rows, dtype=np.int32),
    )
)
cost = cost_of(lambda: policy.learn(replay.sample(size["batch"])), number=100)
tell("ding_lite", cost=cost * 1e6)
