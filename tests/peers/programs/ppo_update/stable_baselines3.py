"""`train` of a full buffer, and before it the advantages, which `learn` computes as it collects."""

import numpy as np
import torch
from measuring import cost_of, settings, tell
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger

torch.set_num_threads(1)
size, rng, shape = settings(), np.random.default_rng(0), (128, 8)
model = PPO(
    "MlpPolicy",
    make_vec_env("CartPole-v1", n_envs=8),
    n_steps=128,
    batch_size=size["batch"],
    n_epochs=4,
    learning_rate=2.5e-4,
    ent_coef=0.01,
    policy_kwargs={"net_arch": [size["width"]] * 2},
    device="cpu",
)
model.set_logger(Logger(None, []))
obs = rng.normal(size=(*shape, 4)).astype(np.float32)
actions, dones = rng.integers(0, 2, size=(*shape, 1)), rng.random((129, 8)) < 0.05
with torch.no_grad():
    values = model.policy.predict_values(torch.from_numpy(obs.reshape(-1, 4))).numpy()
    last_values = model.policy.predict_values(torch.randn(8, 4))


def learn():
    buffer = model.rollout_buffer
    buffer.reset()
    buffer.observations[:], buffer.actions[:], buffer.rewards[:] = obs, actions, 1.0
    buffer.episode_starts[:], buffer.values[:] = dones[:-1], values.reshape(shape)
    buffer.log_probs[:], buffer.full = np.log(0.5), True
    buffer.compute_returns_and_advantage(last_values, dones[-1])
    model.train()


updates = 4 * 1_024 // size["batch"]
tell("stable-baselines3", cost=cost_of(learn, number=1, repeats=5) / updates * 1e6)
