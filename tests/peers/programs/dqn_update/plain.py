"""Double DQN as tutorials write it: modules, the default Adam, arrays that are indexed."""

import copy

import numpy as np
import torch
from measuring import cost_of, settings, tell
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
size, rng, rows = settings(), np.random.default_rng(0), 20_000
width = size["width"]
net = nn.Sequential(
    nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
)
target = copy.deepcopy(net)
adam = torch.optim.Adam(net.parameters(), lr=1e-3)
obs, next_obs = (rng.normal(size=(rows, 4)).astype(np.float32) for _ in range(2))
actions, rewards = rng.integers(0, 2, size=(rows, 1)), rng.random(rows).astype(np.float32)
goes_on = (rng.random(rows) < 0.9).astype(np.float32)


def learn():
    chosen = rng.integers(rows, size=size["batch"])
    b_obs, b_next, b_action, b_reward, b_goes_on = (
        torch.as_tensor(each[chosen]) for each in (obs, next_obs, actions, rewards, goes_on)
    )
    with torch.no_grad():
        best = net(b_next).argmax(1, keepdim=True)
        wanted = b_reward + 0.99 * b_goes_on * target(b_next).gather(1, best).squeeze(1)
    loss = F.smooth_l1_loss(net(b_obs).gather(1, b_action).squeeze(1), wanted)
    adam.zero_grad()
    loss.backward()
    adam.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
            slow.lerp_(fast, 0.005)
    return loss.item()


tell("torch", cost=cost_of(learn, number=100) * 1e6)
