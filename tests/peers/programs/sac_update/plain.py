"""SAC as files of one page write it: two critics, a learned temperature, three default Adams."""

import copy

import numpy as np
import torch
from measuring import cost_of, settings, tell
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

torch.set_num_threads(1)
size, rng, rows = settings(), np.random.default_rng(0), 20_000
width = size["width"]


def network(inputs, outputs):
    layers = nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(width, outputs))


actor, critics = network(3, 2), nn.ModuleList([network(4, 1) for _ in range(2)])
targets = copy.deepcopy(critics)
log_alpha = torch.zeros(1, requires_grad=True)
actor_adam = torch.optim.Adam(actor.parameters(), lr=3e-4)
critic_adam = torch.optim.Adam(critics.parameters(), lr=3e-4)
alpha_adam = torch.optim.Adam([log_alpha], lr=3e-4)
obs, next_obs = (rng.normal(size=(rows, 3)).astype(np.float32) for _ in range(2))
action = rng.uniform(-2.0, 2.0, size=(rows, 1)).astype(np.float32)
reward = -rng.random((rows, 1)).astype(np.float32)
goes_on = (rng.random((rows, 1)) < 0.9).astype(np.float32)


def draw(b_obs):
    mean, log_std = actor(b_obs).chunk(2, dim=1)
    normal = Normal(mean, log_std.clamp(-20.0, 2.0).exp())
    unsquashed = normal.rsample()
    squashed = unsquashed.tanh()
    log_prob = normal.log_prob(unsquashed) - torch.log(2.0 * (1.0 - squashed**2) + 1e-6)
    return 2.0 * squashed, log_prob.sum(1, keepdim=True)


def lowest(nets, b_obs, b_action):
    both = torch.cat((b_obs, b_action), dim=1)
    return torch.min(nets[0](both), nets[1](both))


def step(adam, loss):
    adam.zero_grad()
    loss.backward()
    adam.step()


def learn():
    chosen = rng.integers(rows, size=size["batch"])
    b_obs, b_next, b_action, b_reward, b_goes_on = (
        torch.as_tensor(each[chosen]) for each in (obs, next_obs, action, reward, goes_on)
    )
    with torch.no_grad():
        alpha = log_alpha.exp()
        next_action, next_log_prob = draw(b_next)
        value = lowest(targets, b_next, next_action) - alpha * next_log_prob
        wanted = b_reward + 0.99 * b_goes_on * value
    both = torch.cat((b_obs, b_action), dim=1)
    step(critic_adam, sum(F.mse_loss(critic(both), wanted) for critic in critics))
    drawn, log_prob = draw(b_obs)
    step(actor_adam, (alpha * log_prob - lowest(critics, b_obs, drawn)).mean())
    step(alpha_adam, -(log_alpha.exp() * (log_prob.detach() - 1.0)).mean())
    with torch.no_grad():
        for slow, fast in zip(targets.parameters(), critics.parameters(), strict=True):
            slow.lerp_(fast, 0.005)


tell("torch", cost=cost_of(learn, number=20, repeats=5) * 1e6)
