import numpy as np
import torch
from measuring import cost_of, settings, tell
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger

torch.set_num_threads(1)
size, rng, rows = settings(), np.random.default_rng(0), 20_000
model = SAC(
    "MlpPolicy",
    "Pendulum-v1",
    buffer_size=rows,
    policy_kwargs={"net_arch": [size["width"]] * 2},
    device="cpu",
)
model.set_logger(Logger(None, []))
replay = model.replay_buffer
replay.observations[:] = rng.normal(size=(rows, 1, 3))
replay.next_observations[:] = rng.normal(size=(rows, 1, 3))
replay.actions[:] = rng.uniform(-1.0, 1.0, size=(rows, 1, 1))
replay.rewards[:] = -rng.random((rows, 1))
replay.dones[:] = rng.random((rows, 1)) < 0.1
replay.full = True
cost = cost_of(
    lambda: model.train(gradient_steps=1, batch_size=size["batch"]), number=20, repeats=5
)
tell("stable-baselines3", cost=cost * 1e6)
