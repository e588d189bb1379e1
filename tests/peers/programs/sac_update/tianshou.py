import gymnasium
import numpy as np
import torch
from measuring import cost_of, settings, tell
from tianshou.algorithm import SAC
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import ReplayBuffer
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.torch_utils import policy_within_training_step

torch.set_num_threads(1)
size, rng, rows = settings(), np.random.default_rng(0), 20_000
env, hidden, adam = gymnasium.make("Pendulum-v1"), [size["width"]] * 2, AdamOptimizerFactory(3e-4)


def critic():
    return ContinuousCritic(
        preprocess_net=Net(state_shape=3, action_shape=1, hidden_sizes=hidden, concat=True)
    )


actor = ContinuousActorProbabilistic(
    preprocess_net=Net(state_shape=3, hidden_sizes=hidden),
    action_shape=1,
    unbounded=True,
    conditioned_sigma=True,
)
algorithm = SAC(
    policy=SACPolicy(actor=actor, action_space=env.action_space),
    policy_optim=adam,
    critic=critic(),
    critic_optim=adam,
    critic2=critic(),
    critic2_optim=adam,
    alpha=AutoAlpha(target_entropy=-1.0, log_alpha=0.0, optim=adam),
)
done = rng.random(rows) < 0.1
replay = ReplayBuffer.from_data(
    obs=rng.normal(size=(rows, 3)).astype(np.float32),
    act=rng.uniform(-1.0, 1.0, size=(rows, 1)).astype(np.float32),
    rew=-rng.random(rows),
    terminated=done,
    truncated=np.zeros(rows, dtype=np.bool_),
    done=done,
    obs_next=rng.normal(size=(rows, 3)).astype(np.float32),
)
algorithm.train()
with policy_within_training_step(algorithm.policy):
    cost = cost_of(
        lambda: algorithm.update(replay, sample_size=size["batch"]), number=20, repeats=5
    )
tell("tianshou", cost=cost * 1e6)
