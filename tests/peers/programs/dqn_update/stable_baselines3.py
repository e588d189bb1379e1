import gymnasium
import numpy as np
import torch
from measuring import cost_of, settings, tell
from stable_baselines3 import DQN
from stable_baselines3.common.logger import Logger

torch.set_num_threads(1)
size, rng, rows = settings(), np.random.default_rng(0), 20_000
model = DQN(
    "MlpPolicy",
    gymnasium.make("CartPole-v1"),
    buffer_size=rows,
    tau=0.005,
    target_update_interval=1,
    policy_kwargs={"net_arch": [size["width"]] * 2},
    device="cpu",
)
model.set_logger(Logger(None, []))
replay = model.replay_buffer
replay.observations[:] = rng.normal(size=(rows, 1, 4))
replay.next_observations[:] = rng.normal(size=(rows, 1, 4))
replay.actions[:] = rng.integers(0, 2, size=(rows, 1, 1))
replay.rewards[:] = rng.random((rows, 1))
replay.dones[:] = rng.random((rows, 1)) < 0.1
replay.full = True


def learn():
    model.train(gradient_steps=1, batch_size=size["batch"])
    model._on_step()  # moves the target network


tell("stable-baselines3", cost=cost_of(learn, number=100) * 1e6)
