"""The policies that can be trained by name. A further one is one entry here."""

from __future__ import annotations

from typing import Any

from ding_lite.errors import ConfigError, did_you_mean
from ding_lite.recipes.off_policy import OffPolicyConfig, learn_from_replay
from ding_lite.recipes.on_policy import OnPolicyConfig, ShortRolloutConfig, learn_from_rollouts
from ding_lite.recipes.presets import (
    A2C_PRESETS,
    DDPG_PRESETS,
    DQN_PRESETS,
    IMPALA_PRESETS,
    PPO_PRESETS,
    SAC_PRESETS,
    TD3_PRESETS,
)
from ding_lite.recipes.recipe import Recipe
from ding_lite.rl.policies.a2c import A2C, A2CConfig
from ding_lite.rl.policies.ddpg import DDPG, DDPGConfig
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.policies.impala import IMPALA, IMPALAConfig
from ding_lite.rl.policies.ppo import PPO, PPOConfig
from ding_lite.rl.policies.sac import SAC, SACConfig
from ding_lite.rl.policies.td3 import TD3, TD3Config

RECIPES: dict[str, Recipe[Any]] = {
    "dqn": Recipe(
        policy=DQN,
        policy_config=DQNConfig,
        config=OffPolicyConfig,
        learn=learn_from_replay,
        presets=DQN_PRESETS,
    ),
    "ddpg": Recipe(
        policy=DDPG,
        policy_config=DDPGConfig,
        config=OffPolicyConfig,
        learn=learn_from_replay,
        presets=DDPG_PRESETS,
    ),
    "td3": Recipe(
        policy=TD3,
        policy_config=TD3Config,
        config=OffPolicyConfig,
        learn=learn_from_replay,
        presets=TD3_PRESETS,
    ),
    "sac": Recipe(
        policy=SAC,
        policy_config=SACConfig,
        config=OffPolicyConfig,
        learn=learn_from_replay,
        presets=SAC_PRESETS,
    ),
    "a2c": Recipe(
        policy=A2C,
        policy_config=A2CConfig,
        config=ShortRolloutConfig,
        learn=learn_from_rollouts,
        presets=A2C_PRESETS,
    ),
    "ppo": Recipe(
        policy=PPO,
        policy_config=PPOConfig,
        config=OnPolicyConfig,
        learn=learn_from_rollouts,
        presets=PPO_PRESETS,
    ),
    "impala": Recipe(
        policy=IMPALA,
        policy_config=IMPALAConfig,
        config=OnPolicyConfig,
        learn=learn_from_rollouts,
        presets=IMPALA_PRESETS,
    ),
}


def find_recipe(name: str) -> Recipe[Any]:
    """Look a policy up by its name, such as `dqn`.

    Raises:
        ConfigError: There is none of that name.
    """
    recipe = RECIPES.get(str(name).lower())
    if recipe is None:
        raise ConfigError(
            f"There is no policy {name!r} to train.{did_you_mean(str(name), RECIPES)} "
            f"Known are: {', '.join(RECIPES)}."
        )
    return recipe
