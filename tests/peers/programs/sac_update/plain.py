"""SAC as tutorials write it: two critics, a learned temperature, three default Adams."""

import numpy as np
import torch
from indexing import draw
from measuring import cost_of, settings, tell

from ding_lite.rl import SAC, SACConfig
from tests.bench.continuous_peers import TutorialSAC
from tests.rl.rollouts import PENDULUM, draw_batch

torch.set_num_threads(1)
size = settings()
config = SACConfig(hidden=(size["width"],) * 2, target_tau=0.005)
plain = TutorialSAC(SAC(PENDULUM, config), np.random.default_rng(0))
replay = draw_batch(0, spec=PENDULUM, size=20_000)
cost = cost_of(lambda: plain.learn(draw(replay, size["batch"])), number=20, repeats=5)
tell("torch", cost=cost * 1e6)
