"""PPO as files of one page write it: the loop of GAE, modules, the default Adam."""

from __future__ import annotations

import numpy as np
import torch

from tests.bench.on_policy_peers import TutorialPPO

torch.set_num_threads(1)
rng = np.random.default_rng(0)


class PlainPPO(TutorialPPO):
    """4 epochs of updates from each rollout, [T, N]."""

    def __init__(self, width):
        super().__init__(width, lr=2.5e-4, entropy_coef=0.01)

    def learn(self, rollout, last_obs, goes_on, batch):
        obs, action, log_prob, reward, value = rollout
        with torch.no_grad():
            after, last = torch.cat((value[1:], self.critic(last_obs).T)), 0.0
            advantage = torch.zeros_like(reward)
            for t in reversed(range(len(reward))):
                error = reward[t] + 0.99 * after[t] * goes_on[t] - value[t]
                advantage[t] = last = error + 0.99 * 0.95 * goes_on[t] * last
        columns = {"action": action, "log_prob": log_prob, "advantage": advantage}
        columns["target"] = advantage + value
        rows = {name: each.flatten() for name, each in columns.items()}
        rows["obs"] = obs.flatten(0, 1)
        order = np.arange(reward.numel())
        for _ in range(4):
            rng.shuffle(order)
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                super().learn({name: each[chosen] for name, each in rows.items()})
