"""Reinforcement learning: environments, replay, policies and formulas."""

from ding_lite.deprecation import renamed
from ding_lite.rl.batch import (
    PrioritizedTransitions,
    Rollout,
    RolloutBatch,
    Sequences,
    Step,
    Transitions,
)
from ding_lite.rl.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from ding_lite.rl.envs.vector import Envs, Episode, make_envs
from ding_lite.rl.evaluation import mean_return
from ding_lite.rl.formulas.advantages import Advantages, gae, vtrace
from ding_lite.rl.formulas.exploration import epsilon_ladder
from ding_lite.rl.formulas.returns import NStep
from ding_lite.rl.formulas.schedules import Schedule, constant, exponential, linear
from ding_lite.rl.memory import Memory
from ding_lite.rl.networks.conv import Conv
from ding_lite.rl.policies.a2c import A2C, A2CConfig
from ding_lite.rl.policies.ddpg import DDPG, DDPGConfig
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.policies.impala import IMPALA, IMPALAConfig
from ding_lite.rl.policies.ppo import PPO, PPOConfig
from ding_lite.rl.policies.sac import SAC, SACConfig
from ding_lite.rl.policies.td3 import TD3, TD3Config
from ding_lite.rl.protocols import ActorCritic, Policy, Prioritized, Replay
from ding_lite.rl.replay.episodes import EpisodeBuffer
from ding_lite.rl.replay.prioritized import PrioritizedReplay
from ding_lite.rl.replay.rollout_buffer import RolloutBuffer
from ding_lite.rl.replay.uniform import ReplayBuffer
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_policies.config import TorchPolicyConfig
from ding_lite.rl.torch_policies.r2d2 import R2D2, R2D2Config
from ding_lite.rl.torch_policies.rollout_policy import TensorRollout, TorchRolloutPolicy
from ding_lite.rl.torch_policies.torch_policy import TorchPolicy

__all__ = [
    "A2C",
    "DDPG",
    "DQN",
    "IMPALA",
    "PPO",
    "R2D2",
    "SAC",
    "TD3",
    "A2CConfig",
    "ActorCritic",
    "Advantages",
    "Checkpoint",
    "Conv",
    "DDPGConfig",
    "DQNConfig",
    "EnvSpec",
    "Envs",
    "Episode",
    "EpisodeBuffer",
    "IMPALAConfig",
    "Memory",
    "NStep",
    "PPOConfig",
    "Policy",
    "Prioritized",
    "PrioritizedReplay",
    "PrioritizedTransitions",
    "R2D2Config",
    "Replay",
    "ReplayBuffer",
    "Rollout",
    "RolloutBatch",
    "RolloutBuffer",
    "SACConfig",
    "Schedule",
    "Sequences",
    "Step",
    "TD3Config",
    "TensorRollout",
    "TorchPolicy",
    "TorchPolicyConfig",
    "TorchRolloutPolicy",
    "Transitions",
    "constant",
    "epsilon_ladder",
    "exponential",
    "gae",
    "linear",
    "load_checkpoint",
    "make_envs",
    "mean_return",
    "save_checkpoint",
    "vtrace",
]

__getattr__ = renamed(
    __name__,
    TensorAdvantages="Advantages",
    Unroll="Rollout",
    gae_on_device="gae",
    vtrace_on_device="vtrace",
)
