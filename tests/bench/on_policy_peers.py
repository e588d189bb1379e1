"""The formulas and the update of PPO as tutorials write them: loops in numpy, and plain torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

from ding_lite.rl.batch import BoolArray, FloatArray


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

    def __init__(self, width: int, *, lr: float = 2e-3, entropy_coef: float = 0.0) -> None:
        self.actor, self.critic = (
            nn.Sequential(
                *(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()),
                nn.Linear(width, outputs),
            )
            for outputs in (2, 1)
        )
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.adam = torch.optim.Adam(self.parameters, lr=lr, eps=1e-5)
        self.entropy_coef = entropy_coef

    def learn(self, rows: dict[str, Tensor]) -> float:
        found = Categorical(logits=self.actor(rows["obs"]))
        ratio = (found.log_prob(rows["action"]) - rows["log_prob"]).exp()
        advantage = rows["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        value_loss = F.mse_loss(self.critic(rows["obs"]).squeeze(1), rows["target"])
        loss = -gain.mean() + 0.5 * value_loss - self.entropy_coef * found.entropy().mean()
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.adam.step()
        return float(loss.item())
