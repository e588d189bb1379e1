"""Presets of settings for environments; other settings have defaults.

Beside the settings of the policy and of training they may hold the options `max_env_steps`,
`num_envs` and `target`.
"""

from __future__ import annotations

from typing import Any

DQN_PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"max_env_steps": 50_000, "lr": 3e-3, "capacity": 50_000, "warmup": 0},
    # Random actions swing up once in some 20,000 env steps, and nothing is learned before.
    "Acrobot-v1": {
        "max_env_steps": 200_000,
        "lr": 1e-3,
        "lr_end": 1e-4,
        "target_tau": 0.005,
        "max_grad_norm": 10.0,
        "epsilon_end": 0.05,
        "epsilon_steps": 30_000,
        "update_ratio": 0.5,
        "eval_every": 5_000,
    },
    # Rewards lie between -100 and 100: a squared error counts the few large ones in full.
    # Priorities count mildly and are mostly made up for: all that is new has the highest one, and
    # that is a crash's. An agent that avoids crashes hovers: shorter episodes see more landings.
    # Returns scatter by 100 and more, and one of many evaluations is always lucky: hence the
    # margin, and 100 episodes that must confirm it.
    "LunarLander-v3": {
        "max_env_steps": 300_000,
        "target_margin": 40.0,
        "confirm_episodes": 100,
        "episode_limit": 400,
        "reward_scale": 0.1,
        "loss": "mse",
        "lr": 5e-4,
        "lr_end": 1e-4,
        "lr_updates": 100_000,
        "hidden": (256, 256),
        "target_tau": 0.005,
        "max_grad_norm": 10.0,
        "epsilon_end": 0.05,
        "epsilon_steps": 50_000,
        "update_ratio": 0.5,
        "prioritized": True,
        "priority_alpha": 0.4,
        "priority_beta": 0.6,
        "priority_beta_steps": 300_000,
        "eval_every": 5_000,
    },
    "ding_lite/Catch-v0": {
        "max_env_steps": 100_000,
        "target": 9.0,
        "frame_stack": 2,
        "lr": 5e-4,
        "gamma": 0.97,
        "hidden": (128,),
        "batch_size": 32,
        "epsilon_end": 0.05,
        "epsilon_steps": 10_000,
        "update_ratio": 0.25,
        "eval_every": 4_000,
    },
}

DQN_EVOLUTION_PRESETS: dict[str, dict[str, Any]] = {
    # Noise on all weights costs an agent that balances what it has learned. Without it two of
    # three seeds solve even a search that has agents learn once in 1 to 16 env steps; with it none.
    "CartPole-v1": {
        "max_env_steps": 200_000,
        "lr": 3e-3,
        "capacity": 50_000,
        "warmup": 0,
        "mutate_weights": 0.0,
    },
    # Four agents share the env steps, so that each makes a quarter of the updates: an early end of
    # exploration makes up for that. So do 64 units a layer: 32 need nearly all env steps.
    "LunarLander-v3": {
        "max_env_steps": 400_000,
        "num_envs": 16,
        "population": 4,
        "target_margin": 20.0,
        "reward_scale": 0.1,
        "loss": "mse",
        "lr": 1e-3,
        "hidden": (64, 64),
        "target_tau": 0.002,
        "max_grad_norm": 10.0,
        "epsilon_end": 0.02,
        "epsilon_steps": 12_000,
        "capacity": 200_000,
        "turn": 128,
        "eval_every": 24_000,
        "eval_episodes": 3,
        "mutate_weights": 0.1,
    },
}
"""Settings for a population of DQNs, in place of those for one."""

_PENDULUM: dict[str, Any] = {
    "max_env_steps": 20_000,
    "target": -200.0,
    "target_margin": 20.0,
    "confirm_episodes": 60,
    "critic_lr": 3e-3,
    "gamma": 0.95,
    "target_tau": 0.02,
    "warmup": 500,
    "eval_every": 500,
}
DDPG_PRESETS: dict[str, dict[str, Any]] = {"Pendulum-v1": _PENDULUM}
TD3_PRESETS: dict[str, dict[str, Any]] = {"Pendulum-v1": _PENDULUM}
SAC_PRESETS: dict[str, dict[str, Any]] = {"Pendulum-v1": _PENDULUM}

_CARTPOLE: dict[str, Any] = {"max_env_steps": 50_000, "eval_every": 512}
A2C_PRESETS: dict[str, dict[str, Any]] = {"CartPole-v1": _CARTPOLE}
PPO_PRESETS: dict[str, dict[str, Any]] = {"CartPole-v1": _CARTPOLE}
IMPALA_PRESETS: dict[str, dict[str, Any]] = {"CartPole-v1": _CARTPOLE}
