"""PPO as files of one page write it: the loop of GAE, modules, the default Adam."""

import numpy as np
import torch
from measuring import cost_of, settings, tell
from torch import nn
from torch.distributions import Categorical

torch.set_num_threads(1)
size, rng, steps, num_envs = settings(), np.random.default_rng(0), 128, 8
width = size["width"]


def network(outputs):
    layers = nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(width, outputs))


actor, critic = network(2), network(1)
parameters = [*actor.parameters(), *critic.parameters()]
adam = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)
obs, action = torch.randn(steps, num_envs, 4), torch.randint(2, (steps, num_envs))
reward, log_prob = torch.ones(steps, num_envs), torch.full((steps, num_envs), np.log(0.5))
done = (torch.rand(steps + 1, num_envs) < 0.05).float()
last_obs = torch.randn(num_envs, 4)
with torch.no_grad():
    value = critic(obs).squeeze(2)


def learn():
    with torch.no_grad():
        next_value = critic(last_obs).flatten()
        advantage, last = torch.zeros_like(reward), 0.0
        for t in reversed(range(steps)):
            goes_on = 1.0 - done[t + 1]
            after = next_value if t == steps - 1 else value[t + 1]
            error = reward[t] + 0.99 * after * goes_on - value[t]
            advantage[t] = last = error + 0.99 * 0.95 * goes_on * last
        target = advantage + value
    rows = [x.reshape(-1) for x in (action, log_prob, advantage, target)]
    flat_obs, order = obs.reshape(-1, 4), np.arange(steps * num_envs)
    for _ in range(4):
        rng.shuffle(order)
        for start in range(0, len(order), size["batch"]):
            chosen = order[start : start + size["batch"]]
            b_action, b_log_prob, b_advantage, b_target = (x[chosen] for x in rows)
            found = Categorical(logits=actor(flat_obs[chosen]))
            ratio = (found.log_prob(b_action) - b_log_prob).exp()
            b_advantage = (b_advantage - b_advantage.mean()) / (b_advantage.std() + 1e-8)
            gain = torch.min(ratio * b_advantage, ratio.clamp(0.8, 1.2) * b_advantage).mean()
            error = ((critic(flat_obs[chosen]).flatten() - b_target) ** 2).mean()
            loss = -gain + 0.5 * error - 0.01 * found.entropy().mean()
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            adam.step()


updates = 4 * steps * num_envs // size["batch"]
tell("torch", cost=cost_of(learn, number=1, repeats=5) / updates * 1e6)
