import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from measuring import cost_of, tell
from stable_baselines3.common.buffers import ReplayBuffer

torch.set_num_threads(1)
rng, rows = np.random.default_rng(0), 1_000_000
space = Box(-np.inf, np.inf, (4,), np.float32)
replay = ReplayBuffer(rows, space, Discrete(2), device="cpu", n_envs=16)
shape = rows // 16, 16
replay.observations[:] = rng.normal(size=(*shape, 4))
replay.next_observations[:] = rng.normal(size=(*shape, 4))
replay.actions[:] = rng.integers(0, 2, size=(*shape, 1))
replay.rewards[:] = rng.random(shape)
replay.dones[:] = rng.random(shape) < 0.1
replay.full = True
obs, next_obs = (rng.normal(size=(16, 4)).astype(np.float32) for _ in range(2))
action, reward, done = rng.integers(0, 2, size=16), rng.random(16), rng.random(16) < 0.1
infos = [{} for _ in range(16)]
adding = cost_of(lambda: replay.add(obs, next_obs, action, reward, done, infos), number=1_000)
sampling = cost_of(lambda: replay.sample(256), number=500)
tell("stable-baselines3", **{"add 16": adding * 1e6, "sample": sampling * 1e6})
