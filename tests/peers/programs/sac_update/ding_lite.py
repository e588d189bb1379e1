import torch
from measuring import cost_of, settings, tell

from ding_lite.rl import SAC, ReplayBuffer, SACConfig
from tests.rl.rollouts import PENDULUM, draw_batch

torch.set_num_threads(1)
size, rows = settings(), 20_000
config = SACConfig(hidden=(size["width"],) * 2, gamma=0.99, target_tau=0.005)
policy, replay = SAC(PENDULUM, config), ReplayBuffer(PENDULUM, capacity=rows)
replay.add(draw_batch(0, spec=PENDULUM, size=rows))
cost = cost_of(lambda: policy.learn(replay.sample(size["batch"])), number=20, repeats=5)
tell("ding_lite", cost=cost * 1e6)
