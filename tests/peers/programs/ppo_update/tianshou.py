"""A whole `update`: values and the former log-probabilities of the rollout are part of it."""

import gymnasium
import numpy as np
import torch
from measuring import cost_of, settings, tell
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, VectorReplayBuffer
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step

torch.set_num_threads(1)
size, rng = settings(), np.random.default_rng(0)
env = gymnasium.make("CartPole-v1")


def torso():
    return Net(state_shape=4, hidden_sizes=[size["width"]] * 2, activation=torch.nn.Tanh)


actor = DiscreteActor(preprocess_net=torso(), action_shape=2, softmax_output=False)
algorithm = PPO(
    policy=DiscreteActorPolicy(actor=actor, action_space=env.action_space),
    critic=DiscreteCritic(preprocess_net=torso()),
    optim=AdamOptimizerFactory(lr=2.5e-4, eps=1e-5),
    max_grad_norm=0.5,
)
rollout = VectorReplayBuffer(1_024, 8)
for _ in range(128):
    rollout.add(
        Batch(
            obs=rng.normal(size=(8, 4)).astype(np.float32),
            act=rng.integers(0, 2, size=8),
            rew=np.ones(8),
            obs_next=rng.normal(size=(8, 4)).astype(np.float32),
            terminated=rng.random(8) < 0.05,
            truncated=np.zeros(8, dtype=np.bool_),
        )
    )
algorithm.train()
updates = 4 * 1_024 // size["batch"]
with policy_within_training_step(algorithm.policy):
    cost = cost_of(
        lambda: algorithm.update(rollout, batch_size=size["batch"], repeat=4), number=1, repeats=5
    )
tell("tianshou", cost=cost / updates * 1e6)
