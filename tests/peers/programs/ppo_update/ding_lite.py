"""A whole `learn`: the values of the rollout, which peers but Tianshou have stored, are part."""

import numpy as np
import torch
from measuring import cost_of, settings, tell

from ding_lite.rl import PPO, PPOConfig, Rollout, make_envs

torch.set_num_threads(1)
size, rng, shape = settings(), np.random.default_rng(0), (128, 8)
config = PPOConfig(
    hidden=(size["width"],) * 2,
    batch_size=size["batch"],
    epochs=4,
    lr=2.5e-4,
    gamma=0.99,
    entropy_coef=0.01,
)
policy = PPO(make_envs("CartPole-v1", 1).spec, config)
none = np.zeros(0, dtype=np.int64)
rollout = Rollout(
    obs=rng.normal(size=(*shape, 4)).astype(np.float32),
    action=rng.integers(0, 2, size=shape),
    reward=np.ones(shape, dtype=np.float32),
    terminated=rng.random(shape) < 0.05,
    truncated=np.zeros(shape, dtype=np.bool_),
    log_prob=np.full(shape, np.log(0.5), dtype=np.float32),
    last_obs=rng.normal(size=(8, 4)).astype(np.float32),
    cut_time=none,
    cut_env=none,
    cut_obs=np.zeros((0, 4), dtype=np.float32),
)
updates = 4 * 1_024 // size["batch"]
cost = cost_of(lambda: policy.learn([rollout]), number=1, repeats=5)
tell("ding_lite", cost=cost / updates * 1e6)
