"""PPO as files of one page write it: the loop of GAE, modules, the default Adam."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

torch.set_num_threads(1)
rng = np.random.default_rng(0)


def network(width, outputs):
    layers = nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(width, outputs))


class PlainPPO:
    """An actor, a critic, and 4 epochs of updates from each rollout, [T, N]."""

    def __init__(self, width):
        self.actor, self.critic = network(width, 2), network(width, 1)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.adam = torch.optim.Adam(self.parameters, lr=2.5e-4, eps=1e-5)

    def learn(self, rollout, last_obs, goes_on, batch):
        """Learn from observations, actions, their log-probabilities, rewards and values."""
        obs, action, log_prob, reward, value = rollout
        with torch.no_grad():
            after, last = torch.cat((value[1:], self.critic(last_obs).T)), 0.0
            advantage = torch.zeros_like(reward)
            for t in reversed(range(len(reward))):
                error = reward[t] + 0.99 * after[t] * goes_on[t] - value[t]
                advantage[t] = last = error + 0.99 * 0.95 * goes_on[t] * last
            target = advantage + value
        rows = [obs.reshape(-1, 4)]
        rows += [each.reshape(-1) for each in (action, log_prob, advantage, target)]
        order = np.arange(reward.numel())
        for _ in range(4):
            rng.shuffle(order)
            for start in range(0, len(order), batch):
                self.update(*(each[order[start : start + batch]] for each in rows))

    def update(self, obs, action, log_prob, advantage, target):
        found = Categorical(logits=self.actor(obs))
        ratio = (found.log_prob(action) - log_prob).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        error = ((self.critic(obs).flatten() - target) ** 2).mean()
        loss = -gain + 0.5 * error - 0.01 * found.entropy().mean()
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.adam.step()
