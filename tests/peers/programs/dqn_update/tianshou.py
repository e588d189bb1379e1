import gymnasium
import numpy as np
import torch
from measuring import cost_of, settings, tell
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, VectorReplayBuffer
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step

torch.set_num_threads(1)
size, rng, rows = settings(), np.random.default_rng(0), 20_000
env = gymnasium.make("CartPole-v1")
net = Net(state_shape=4, action_shape=2, hidden_sizes=[size["width"]] * 2)
algorithm = DQN(
    policy=DiscreteQLearningPolicy(model=net, action_space=env.action_space),
    optim=AdamOptimizerFactory(lr=1e-3),
    target_update_freq=200,
    huber_loss_delta=1.0,
)
replay = VectorReplayBuffer(rows, 1)
for _ in range(rows):
    replay.add(
        Batch(
            obs=rng.normal(size=(1, 4)).astype(np.float32),
            act=rng.integers(0, 2, size=1),
            rew=rng.random(1),
            obs_next=rng.normal(size=(1, 4)).astype(np.float32),
            terminated=rng.random(1) < 0.1,
            truncated=np.zeros(1, dtype=np.bool_),
        )
    )
algorithm.train()
with policy_within_training_step(algorithm.policy):
    cost = cost_of(lambda: algorithm.update(replay, sample_size=size["batch"]), number=100)
tell("tianshou", cost=cost * 1e6)
