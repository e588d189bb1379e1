import torch
from measuring import cost_of, settings, tell
from ours import transitions

from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs

torch.set_num_threads(1)
size = settings()
envs, rows = make_envs("CartPole-v1", 1), 20_000
policy = DQN(envs.spec, DQNConfig(hidden=(size["width"],) * 2, n_step=1, gamma=0.99))
replay = ReplayBuffer(envs.spec, capacity=rows)
replay.add(transitions(rows))
cost = cost_of(lambda: policy.learn(replay.sample(size["batch"])), number=100)
tell("ding_lite", cost=cost * 1e6)
