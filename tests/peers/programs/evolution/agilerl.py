import numpy as np
import torch
from agilerl.algorithms.dqn import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from gymnasium.spaces import Box, Discrete
from measuring import cost_of, tell
from tensordict import TensorDict

torch.set_num_threads(1)
rows = 20_000
space = Box(-np.inf, np.inf, (4,), np.float32)
net = {"encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}}
agents = [
    DQN(space, Discrete(2), index=i, net_config=net, batch_size=128, lr=1e-3) for i in range(4)
]
replay = ReplayBuffer(rows)
replay.add(
    TensorDict(
        {
            "obs": torch.randn(rows, 4),
            "action": torch.randint(2, (rows, 1)),
            "reward": torch.rand(rows, 1),
            "next_obs": torch.randn(rows, 4),
            "done": (torch.rand(rows, 1) < 0.1).float(),
        },
        [rows],
    )
)


def learn():
    for agent in agents:
        agent.learn(replay.sample(128))


tell("agilerl", cost=cost_of(learn, number=25) / 4 * 1e6)
