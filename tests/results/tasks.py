"""The tasks of the results, and the tuned values that Stable-Baselines3 has for each.

These are of rl-baselines3-zoo (hyperparams/*.yml), for the nearest version of each environment,
without its state-dependent exploration where that is the only difference.
"""

from __future__ import annotations

from typing import Any

SEEDS = (0, 1, 2)
TASKS: dict[str, dict[str, tuple[str, ...]]] = {
    "classic control": {
        "CartPole-v1": ("ppo", "dqn"),
        "Acrobot-v1": ("ppo", "dqn"),
        "MountainCar-v0": ("ppo", "dqn"),
        "MountainCarContinuous-v0": ("sac", "td3"),
        "Pendulum-v1": ("ppo", "sac", "td3"),
    },
    "Box2D": {
        "LunarLander-v3": ("ppo", "dqn"),
        "LunarLanderContinuous-v3": ("ppo", "sac", "td3"),
        "BipedalWalker-v3": ("ppo", "sac", "td3"),
    },
    "MuJoCo": {
        f"{robot}-v5": ("ppo", "sac", "td3")
        for robot in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Swimmer")
    },
    "MinAtar": {
        f"MinAtar/{game}-v1": ("ppo", "dqn")
        for game in ("Asterix", "Breakout", "Freeway", "SpaceInvaders")
    },
    "Atari": {"ALE/Pong-v5": ("ppo", "dqn"), "ALE/Breakout-v5": ("ppo", "dqn")},
}
"""Environments by group, and the policies that have a preset for each."""

_RELU_256 = {"activation_fn": "ReLU", "net_arch": [256, 256], "ortho_init": False}
_ROBOT_PPO: dict[str, Any] = {"normalize": True, "steps": 1e6}
_ROBOT: dict[str, Any] = {"steps": 1e6, "learning_starts": 10_000}
_ROBOT_TD3: dict[str, Any] = {**_ROBOT, "noise_std": 0.1}
ZOO: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "CartPole-v1"): {
        **{"steps": 1e5, "envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8},
        **{"gamma": 0.98, "n_epochs": 20, "learning_rate": "lin_0.001", "clip_range": "lin_0.2"},
    },
    ("ppo", "Acrobot-v1"): {
        **{"normalize": True, "steps": 1e6, "envs": 16, "n_steps": 256},
        **{"gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4},
    },
    ("ppo", "MountainCar-v0"): {
        **{"normalize": True, "steps": 1e6, "envs": 16, "n_steps": 16},
        **{"gae_lambda": 0.98, "gamma": 0.99, "n_epochs": 4},
    },
    ("ppo", "Pendulum-v1"): {
        **{"steps": 1e5, "envs": 4, "n_steps": 1_024, "gamma": 0.9, "learning_rate": 1e-3},
        **{"use_sde": True, "sde_sample_freq": 4},
    },
    ("ppo", "LunarLander-v3"): {
        **{"steps": 1e6, "envs": 16, "n_steps": 1_024, "batch_size": 64, "gae_lambda": 0.98},
        **{"gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
    },
    ("ppo", "BipedalWalker-v3"): {
        **{"normalize": True, "steps": 5e6, "envs": 32, "n_steps": 2_048, "batch_size": 64},
        **{"gamma": 0.999, "clip_range": 0.18},
    },
    ("ppo", "HalfCheetah-v5"): {
        **_ROBOT_PPO,
        **{"batch_size": 64, "n_steps": 512, "gamma": 0.98, "learning_rate": 2.0633e-5},
        **{"ent_coef": 0.000401762, "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92},
        **{"max_grad_norm": 0.8, "vf_coef": 0.58096, "net": {**_RELU_256, "log_std_init": -2}},
    },
    ("ppo", "Hopper-v5"): {
        **_ROBOT_PPO,
        **{"batch_size": 32, "n_steps": 512, "gamma": 0.999, "learning_rate": 9.80828e-5},
        **{"ent_coef": 0.00229519, "n_epochs": 5, "gae_lambda": 0.99, "max_grad_norm": 0.7},
        **{"vf_coef": 0.835671, "net": {**_RELU_256, "log_std_init": -2}},
    },
    ("ppo", "Walker2d-v5"): {
        **_ROBOT_PPO,
        **{"batch_size": 32, "n_steps": 512, "learning_rate": 5.05041e-5, "clip_range": 0.1},
        **{"ent_coef": 0.000585045, "n_epochs": 20, "max_grad_norm": 1, "vf_coef": 0.871923},
    },
    ("ppo", "Ant-v5"): _ROBOT_PPO,
    ("ppo", "Swimmer-v5"): {**_ROBOT_PPO, "gamma": 0.9999},
    ("dqn", "CartPole-v1"): {
        **{"steps": 5e4, "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000},
        **{"learning_starts": 1_000, "target_update_interval": 10, "train_freq": 256},
        **{"gradient_steps": 128, "exploration_fraction": 0.16, "exploration_final_eps": 0.04},
        **{"net": {"net_arch": [256, 256]}},
    },
    ("dqn", "MountainCar-v0"): {
        **{"steps": 1.2e5, "learning_rate": 4e-3, "batch_size": 128, "buffer_size": 10_000},
        **{"learning_starts": 1_000, "gamma": 0.98, "target_update_interval": 600},
        **{"train_freq": 16, "gradient_steps": 8, "exploration_fraction": 0.2},
        **{"exploration_final_eps": 0.07, "net": {"net_arch": [256, 256]}},
    },
    ("dqn", "LunarLander-v3"): {
        **{"steps": 1e5, "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000},
        **{"learning_starts": 0, "target_update_interval": 250, "train_freq": 4},
        **{"gradient_steps": -1, "exploration_fraction": 0.12, "exploration_final_eps": 0.1},
        **{"net": {"net_arch": [256, 256]}},
    },
    ("sac", "MountainCarContinuous-v0"): {
        **{"steps": 5e4, "learning_rate": 3e-4, "buffer_size": 50_000, "batch_size": 512},
        **{"ent_coef": 0.1, "train_freq": 32, "gradient_steps": 32, "gamma": 0.9999},
        **{"tau": 0.01, "learning_starts": 0, "use_sde": True},
        **{"net": {"log_std_init": -3.67, "net_arch": [64, 64]}},
    },
    ("sac", "Pendulum-v1"): {"steps": 2e4, "learning_rate": 1e-3},
    ("sac", "LunarLanderContinuous-v3"): {
        **{"steps": 5e5, "batch_size": 256, "learning_rate": "lin_7.3e-4", "tau": 0.01},
        **{"learning_starts": 10_000, "net": {"net_arch": [400, 300]}},
    },
    ("sac", "BipedalWalker-v3"): {
        **{"steps": 5e5, "learning_rate": 7.3e-4, "buffer_size": 300_000, "gamma": 0.98},
        **{"tau": 0.02, "train_freq": 64, "gradient_steps": 64, "learning_starts": 10_000},
        **{"use_sde": True, "net": {"log_std_init": -3, "net_arch": [400, 300]}},
    },
    ("sac", "Swimmer-v5"): {**_ROBOT, "gamma": 0.9999},
    ("td3", "MountainCarContinuous-v0"): {"steps": 3e5, "noise_std": 0.5, "is_correlated": True},
    ("td3", "Pendulum-v1"): {
        **{"steps": 2e4, "gamma": 0.98, "buffer_size": 200_000, "learning_starts": 10_000},
        **{"noise_std": 0.1, "learning_rate": 1e-3, "net": {"net_arch": [400, 300]}},
    },
    ("td3", "LunarLanderContinuous-v3"): {
        **{"steps": 3e5, "gamma": 0.98, "buffer_size": 200_000, "learning_starts": 10_000},
        **{"noise_std": 0.1, "learning_rate": 1e-3, "net": {"net_arch": [400, 300]}},
    },
    ("td3", "BipedalWalker-v3"): {
        **{"steps": 1e6, "gamma": 0.98, "buffer_size": 200_000, "learning_starts": 10_000},
        **{"noise_std": 0.1, "learning_rate": 1e-3, "net": {"net_arch": [400, 300]}},
    },
    ("td3", "Swimmer-v5"): {**_ROBOT_TD3, "gamma": 0.9999},
}
ZOO[("dqn", "Acrobot-v1")] = ZOO[("dqn", "LunarLander-v3")]
ZOO[("ppo", "LunarLanderContinuous-v3")] = ZOO[("ppo", "LunarLander-v3")]
for _robot in ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5"):
    ZOO[("sac", _robot)] = _ROBOT
    ZOO[("td3", _robot)] = _ROBOT_TD3


def policies_of(env: str) -> tuple[str, ...]:
    return next(envs[env] for envs in TASKS.values() if env in envs)
