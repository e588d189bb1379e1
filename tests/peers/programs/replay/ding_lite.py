import torch
from measuring import cost_of, tell

from ding_lite.rl import ReplayBuffer
from tests.rl.rollouts import CARTPOLE, draw_batch

torch.set_num_threads(1)
replay = ReplayBuffer(CARTPOLE, capacity=1_000_000)
replay.add(draw_batch(0, spec=CARTPOLE, size=1_000_000))
few = draw_batch(1, spec=CARTPOLE, size=16)
adding = cost_of(lambda: replay.add(few), number=1_000)
sampling = cost_of(lambda: replay.sample(256), number=500)
tell("ding_lite", **{"add 16": adding * 1e6, "sample": sampling * 1e6})
