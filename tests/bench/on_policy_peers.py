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

from ding_lite.rl import A2CConfig, PPOConfig
from ding_lite.rl.batch import Rollout


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

    def learn_rollout(self, rollout: Rollout, config: A2CConfig | PPOConfig) -> None:
        obs, last_obs, cut_obs = map(
            torch.from_numpy, (rollout.obs, rollout.last_obs, rollout.cut_obs)
        )
        with torch.no_grad():
            value, last, cut = (self.critic(each).squeeze(-1) for each in (obs, last_obs, cut_obs))
        next_value = torch.cat((value[1:], last[None])).numpy()
        next_value[rollout.cut_time, rollout.cut_env] = cut
        discount = np.float32(config.gamma) * ~rollout.terminated
        given = discount, rollout.reward, value.numpy(), next_value, rollout.truncated
        columns = dict(zip(("advantage", "target"), plain_gae(*given), strict=True))
        columns |= {"action": rollout.action, "log_prob": rollout.log_prob}
        rows = {name: torch.from_numpy(each).flatten() for name, each in columns.items()}
        rows["obs"] = obs.flatten(0, 1)
        size, epochs = rollout.reward.size, 1
        if isinstance(config, PPOConfig):
            size, epochs = config.batch_size, config.epochs
        for _ in range(epochs):
            for chosen in torch.randperm(rollout.reward.size).split(size):
                self.learn({name: each[chosen] for name, each in rows.items()})

    def learn(self, rows: dict[str, Tensor]) -> float:
        found = Categorical(logits=self.actor(rows["obs"]))
        gain = self._gain(found.log_prob(rows["action"]), rows)
        value_loss = F.mse_loss(self.critic(rows["obs"]).squeeze(1), rows["target"])
        loss = -gain.mean() + 0.5 * value_loss - self.entropy_coef * found.entropy().mean()
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.adam.step()
        return float(loss.item())

    def _gain(self, log_prob: Tensor, rows: dict[str, Tensor]) -> Tensor:
        ratio = (log_prob - rows["log_prob"]).exp()
        advantage = rows["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


class TutorialA2C(TutorialPPO):
    def _gain(self, log_prob: Tensor, rows: dict[str, Tensor]) -> Tensor:
        return log_prob * rows["advantage"]
