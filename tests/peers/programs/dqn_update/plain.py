"""Double DQN as tutorials write it: modules, the default Adam, tensors that are indexed."""

import torch
from indexing import draw
from measuring import cost_of, settings, tell

from ding_lite.rl import DQNConfig
from tests.bench.bench_dqn_update import PlainDQN
from tests.rl.rollouts import CARTPOLE, draw_batch

torch.set_num_threads(1)
size = settings()
plain = PlainDQN(size["width"], DQNConfig(lr=1e-3, target_tau=0.005))
replay = draw_batch(0, spec=CARTPOLE, size=20_000)
cost = cost_of(lambda: plain.learn(draw(replay, size["batch"])), number=100)
tell("torch", cost=cost * 1e6)
