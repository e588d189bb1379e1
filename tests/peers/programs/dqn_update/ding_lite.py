import torch
from measuring import cost_of, settings, tell

from ding_lite.rl import DQN, DQNConfig, ReplayBuffer
from tests.rl.rollouts import CARTPOLE, draw_batch

torch.set_num_threads(1)
size, rows = settings(), 20_000
policy = DQN(CARTPOLE, DQNConfig(hidden=(size["width"],) * 2, n_step=1, gamma=0.99))
replay = ReplayBuffer(CARTPOLE, capacity=rows)
replay.add(draw_batch(0, spec=CARTPOLE, size=rows))
cost = cost_of(lambda: policy.learn(replay.sample(size["batch"])), number=100)
tell("ding_lite", cost=cost * 1e6)
