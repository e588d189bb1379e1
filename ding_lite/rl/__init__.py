"""Reinforcement learning: environments, replay, policies, and the formulas between them."""

from ding_lite.rl.batch import (
    PrioritizedTransitions,
    RolloutBatch,
    Sequences,
    Step,
    Transitions,
)
from ding_lite.rl.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from ding_lite.rl.envs import Envs, Episode, make_envs
from ding_lite.rl.episodes import EpisodeBuffer
from ding_lite.rl.evaluation import mean_return
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.prioritized import PrioritizedReplay
from ding_lite.rl.protocols import Policy, Prioritized, Replay
from ding_lite.rl.replay import ReplayBuffer
from ding_lite.rl.returns import Advantages, NStep, gae, vtrace
from ding_lite.rl.rollout import RolloutBuffer
from ding_lite.rl.schedules import Schedule, constant, exponential, linear
from ding_lite.rl.spec import EnvSpec

__all__ = [
    "DQN",
    "Advantages",
    "Checkpoint",
    "DQNConfig",
    "EnvSpec",
    "Envs",
    "Episode",
    "EpisodeBuffer",
    "NStep",
    "Policy",
    "Prioritized",
    "PrioritizedReplay",
    "PrioritizedTransitions",
    "Replay",
    "ReplayBuffer",
    "RolloutBatch",
    "RolloutBuffer",
    "Schedule",
    "Sequences",
    "Step",
    "Transitions",
    "constant",
    "exponential",
    "gae",
    "linear",
    "load_checkpoint",
    "make_envs",
    "mean_return",
    "save_checkpoint",
    "vtrace",
]
