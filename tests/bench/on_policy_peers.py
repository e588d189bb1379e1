"""A2C and PPO of others: the usual loops in numpy, plain torch, and Stable-Baselines3."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

from ding_lite.rl.batch import BoolArray, FloatArray

SB3 = "stable-baselines3"
ZOO: dict[str, dict[str, Any]] = {
    "a2c": {"ent_coef": 0.0},
    "ppo": {
        **{"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98},
        "learning_rate": lambda left: 1e-3 * left,
        "clip_range": lambda left: 0.2 * left,
    },
}
"""The settings of its zoo for CartPole-v1, beside 8 environments."""
ZOO_ENV_STEPS = {"a2c": 500_000, "ppo": 100_000}
"""How long it would train; over these its settings fall."""


@dataclass(frozen=True)
class Solved:
    """The cost of a run."""

    env_steps: int
    seconds: float


def plain_gae(
    discount_TB: FloatArray,
    reward_TB: FloatArray,
    value_TB: FloatArray,
    next_value_TB: FloatArray,
    truncated_TB: BoolArray,
) -> tuple[FloatArray, FloatArray]:
    """Compute advantages and targets: all errors at once, then a loop over time on views."""
    advantage_TB = reward_TB + discount_TB * next_value_TB - value_TB
    decay_TB = np.float32(0.95) * discount_TB * ~truncated_TB
    last_B = advantage_TB[-1]
    for time_left in range(len(reward_TB) - 2, -1, -1):
        row_B = advantage_TB[time_left]
        row_B += decay_TB[time_left] * last_B
        last_B = row_B
    return advantage_TB, advantage_TB + value_TB


def plain_vtrace(
    log_rho_TB: FloatArray,
    discount_TB: FloatArray,
    reward_TB: FloatArray,
    value_TB: FloatArray,
    next_value_TB: FloatArray,
    truncated_TB: BoolArray,
) -> tuple[FloatArray, FloatArray]:
    """Compute advantages and targets likewise."""
    rho_TB = np.minimum(np.exp(log_rho_TB), np.float32(1.0))
    sum_TB = rho_TB * (reward_TB + discount_TB * next_value_TB - value_TB)
    decay_TB = discount_TB * rho_TB * ~truncated_TB
    last_B = sum_TB[-1]
    for time_left in range(len(reward_TB) - 2, -1, -1):
        row_B = sum_TB[time_left]
        row_B += decay_TB[time_left] * last_B
        last_B = row_B
    target_TB = sum_TB + value_TB
    next_target_TB = next_value_TB.copy()
    next_target_TB[:-1] = np.where(truncated_TB[:-1], next_value_TB[:-1], target_TB[1:])
    return rho_TB * (reward_TB + discount_TB * next_target_TB - value_TB), target_TB


class TutorialPPO:
    """An update of PPO as a tutorial writes it: modules, torch's distribution, the default Adam."""

    def __init__(self, width: int) -> None:
        """Make both networks."""
        self.actor, self.critic = (
            nn.Sequential(
                *(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()),
                nn.Linear(width, outputs),
            )
            for outputs in (2, 1)
        )
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.adam = torch.optim.Adam(self.parameters, lr=2e-3, eps=1e-5)

    def learn(self, rows: dict[str, Tensor]) -> float:
        """Do one update."""
        found = Categorical(logits=self.actor(rows["obs"]))
        ratio = (found.log_prob(rows["action"]) - rows["log_prob"]).exp()
        advantage = rows["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        value_loss = F.mse_loss(self.critic(rows["obs"]).squeeze(1), rows["target"])
        loss = -gain.mean() + 0.5 * value_loss - 0.0 * found.entropy().mean()
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.adam.step()
        return float(loss.item())


def sb3_version() -> str | None:
    """Return the version of Stable-Baselines3; None where it is not installed."""
    return metadata.version(SB3) if find_spec("stable_baselines3") else None


def sb3_solve(
    name: str, seed: int, *, target: float, eval_every: int, max_env_steps: int
) -> Solved:
    """Train Stable-Baselines3 with its zoo's values until 20 greedy episodes are good enough."""
    sb3: Any = import_module("stable_baselines3")
    make_vec_env: Any = import_module("stable_baselines3.common.env_util").make_vec_env
    evaluate: Any = import_module("stable_baselines3.common.evaluation").evaluate_policy
    envs = make_vec_env("CartPole-v1", n_envs=8, seed=seed)
    eval_envs = make_vec_env("CartPole-v1", n_envs=20, seed=1_000_000 + seed)
    torch.set_num_threads(1)
    model = getattr(sb3, name.upper())("MlpPolicy", envs, seed=seed, device="cpu", **ZOO[name])
    solved_at, seconds_of_evaluation = max_env_steps, 0.0

    def go_on(_: dict[str, Any], __: dict[str, Any]) -> bool:
        nonlocal solved_at, seconds_of_evaluation
        if model.num_timesteps % eval_every:
            return bool(model.num_timesteps < max_env_steps)
        started = time.process_time()
        mean, _spread = evaluate(model, eval_envs, n_eval_episodes=20)
        seconds_of_evaluation += time.process_time() - started
        if mean >= target:
            solved_at = model.num_timesteps
        return bool(mean < target)

    started = time.process_time()
    model.learn(ZOO_ENV_STEPS[name], callback=go_on)
    return Solved(solved_at, time.process_time() - started - seconds_of_evaluation)
