import numpy as np
import torch
from measuring import cost_of, settings, tell

from ding_lite.rl import SAC, ReplayBuffer, SACConfig, Transitions, make_envs

torch.set_num_threads(1)
size, rng, rows = settings(), np.random.default_rng(0), 20_000
envs = make_envs("Pendulum-v1", 1)
config = SACConfig(hidden=(size["width"],) * 2, gamma=0.99, target_tau=0.005)
policy, replay = SAC(envs.spec, config), ReplayBuffer(envs.spec, capacity=rows)
replay.add(
    Transitions(
        obs=rng.normal(size=(rows, 3)).astype(np.float32),
        action=rng.uniform(-2.0, 2.0, size=(rows, 1)).astype(np.float32),
        reward=-rng.random(rows).astype(np.float32),
        next_obs=rng.normal(size=(rows, 3)).astype(np.float32),
        terminated=rng.random(rows) < 0.1,
        truncated=np.zeros(rows, dtype=np.bool_),
        num_steps=np.ones(rows, dtype=np.int32),
    )
)
cost = cost_of(lambda: policy.learn(replay.sample(size["batch"])), number=20, repeats=5)
tell("ding_lite", cost=cost * 1e6)
