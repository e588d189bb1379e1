import time

import torch
from measuring import settings, tell
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

torch.set_num_threads(1)
width = settings()["width"]
model = PPO(
    "MlpPolicy",
    make_vec_env("CartPole-v1", n_envs=8, seed=0),
    n_steps=128,
    batch_size=256,
    n_epochs=4,
    learning_rate=2.5e-4,
    policy_kwargs={"net_arch": [width, width]},
    device="cpu",
)
model.learn(3 * 1_024)
began = time.process_time()
model.learn(30 * 1_024)
tell("stable-baselines3", cost=30 * 1_024 / (time.process_time() - began))
