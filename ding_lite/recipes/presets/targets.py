"""Environments that have no threshold of their own, with the returns that presets aim at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Presets: TypeAlias = dict[str, dict[str, Any]]
"""Settings and options by name, for each environment by its id."""

# Published returns. MinAtar's are of PPO in the README of gymnax; Breakout's is near the 274.8 of
# PPO (Schulman et al. 2017, arXiv:1707.06347, table 6), and Pong's is that of DQN (Mnih et al.
# 2015, doi:10.1038/nature14236), as sticky actions make the 20.7 of PPO hard to reach.
MINATAR = {
    "MinAtar/Asterix-v1": 15.0,
    "MinAtar/Breakout-v1": 28.0,
    "MinAtar/Freeway-v1": 58.0,
    "MinAtar/SpaceInvaders-v1": 131.0,
}
ATARI = {"ALE/Breakout-v5": 275.0, "ALE/Pong-v5": 18.9}
# The lower of two returns: gymnasium's threshold, which most methods do not reach in as many env
# steps, and the return of Stable-Baselines3 on v3 with tuned values (rl-baselines3-zoo,
# benchmark.md). For Humanoid its SAC and TD3 took twice the env steps, and it has no PPO result.
MUJOCO = {
    "Ant-v5": {"ppo": 1_327.0, "sac": 4_615.0, "td3": 5_813.0},
    "HalfCheetah-v5": {"ppo": 4_800.0, "sac": 4_800.0, "td3": 4_800.0},
    "Hopper-v5": {"ppo": 2_410.0, "sac": 2_325.0, "td3": 3_606.0},
    "Humanoid-v5": {"ppo": 5_000.0, "sac": 5_000.0, "td3": 5_000.0},
    "Swimmer-v5": {"ppo": 281.0, "sac": 345.0, "td3": 359.0},
    "Walker2d-v5": {"ppo": 3_478.0, "sac": 3_863.0, "td3": 4_717.0},
}


def with_targets(targets: Mapping[str, float], settings: Mapping[str, Any]) -> Presets:
    return {env: {**settings, "target": target} for env, target in targets.items()}


def with_mujoco_targets(policy: str, settings: Mapping[str, Any]) -> Presets:
    """Return presets for MuJoCo; Swimmer learns to move only with a high gamma."""
    presets = with_targets({env: of[policy] for env, of in MUJOCO.items()}, settings)
    presets["Swimmer-v5"]["gamma"] = 0.9999  # as in rl-baselines3-zoo
    return presets
