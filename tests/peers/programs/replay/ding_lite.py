import torch
from measuring import cost_of, tell
from ours import transitions

from ding_lite.rl import ReplayBuffer, make_envs

torch.set_num_threads(1)
replay = ReplayBuffer(make_envs("CartPole-v1", 1).spec, capacity=1_000_000)
replay.add(transitions(1_000_000))
few = transitions(16)
adding = cost_of(lambda: replay.add(few), number=1_000)
sampling = cost_of(lambda: replay.sample(256), number=500)
tell("ding_lite", **{"add 16": adding * 1e6, "sample": sampling * 1e6})
