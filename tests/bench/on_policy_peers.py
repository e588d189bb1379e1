"""The formulas and the update of PPO as tutorials write them.

The formulas take arrays, or tensors on any device; the update is plain torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F


def plain_gae(
    discount_TB: Any, reward_TB: Any, value_TB: Any, next_value_TB: Any, truncated_TB: Any
) -> tuple[Any, Any]:
    """Compute advantages and targets: all errors at once, then a loop over time on views."""
    advantage_TB = reward_TB + discount_TB * next_value_TB - value_TB
    decay_TB = 0.95 * discount_TB * ~truncated_TB
    _add_later(advantage_TB, decay_TB)
    return advantage_TB, advantage_TB + value_TB


def plain_vtrace(
    log_rho_TB: Any,
    discount_TB: Any,
    reward_TB: Any,
    value_TB: Any,
    next_value_TB: Any,
    truncated_TB: Any,
) -> tuple[Any, Any]:
    xp: Any = torch if isinstance(log_rho_TB, Tensor) else np
    rho_TB = xp.exp(log_rho_TB).clip(max=1.0)
    sum_TB = rho_TB * (reward_TB + discount_TB * next_value_TB - value_TB)
    _add_later(sum_TB, discount_TB * rho_TB * ~truncated_TB)
    target_TB = sum_TB + value_TB
    next_target_TB = 1.0 * next_value_TB
    next_target_TB[:-1] = xp.where(truncated_TB[:-1], next_value_TB[:-1], target_TB[1:])
    return rho_TB * (reward_TB + discount_TB * next_target_TB - value_TB), target_TB


def _add_later(sum_TB: Any, decay_TB: Any) -> None:
    last_B = sum_TB[-1]
    for time_left in range(len(sum_TB) - 2, -1, -1):
        row_B = sum_TB[time_left]
        row_B += decay_TB[time_left] * last_B
        last_B = row_B


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
