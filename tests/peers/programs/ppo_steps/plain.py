"""The loop of one file that tutorials have: a vector environment, modules, the default Adam."""

import time

import gymnasium
import numpy as np
import torch
from measuring import settings, tell
from torch import nn
from torch.distributions import Categorical

torch.set_num_threads(1)
width, num_envs, steps = settings()["width"], 8, 128
envs = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")


def network(outputs):
    layers = nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(width, outputs))


actor, critic = network(2), network(1)
parameters = [*actor.parameters(), *critic.parameters()]
adam = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)
obs = torch.zeros(steps, num_envs, 4)
action, log_prob, reward, done, value = (torch.zeros(steps, num_envs) for _ in range(5))
now = torch.as_tensor(envs.reset(seed=0)[0])
is_done = torch.zeros(num_envs)


def iterate():
    global now, is_done
    for t in range(steps):
        obs[t], done[t] = now, is_done
        with torch.no_grad():
            found = Categorical(logits=actor(now))
            drawn = found.sample()
            action[t], log_prob[t] = drawn, found.log_prob(drawn)
            value[t] = critic(now).flatten()
        following, rewards, terminated, truncated, _ = envs.step(drawn.numpy())
        reward[t] = torch.as_tensor(rewards)
        now = torch.as_tensor(following)
        is_done = torch.as_tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
    with torch.no_grad():
        next_value, last = critic(now).flatten(), torch.zeros(num_envs)
        advantage = torch.zeros_like(reward)
        for t in reversed(range(steps)):
            goes_on = 1.0 - (is_done if t == steps - 1 else done[t + 1])
            after = next_value if t == steps - 1 else value[t + 1]
            error = reward[t] + 0.99 * after * goes_on - value[t]
            advantage[t] = last = error + 0.99 * 0.95 * goes_on * last
        target = advantage + value
    rows = [x.reshape(-1) for x in (action, log_prob, advantage, target)]
    flat_obs, order = obs.reshape(-1, 4), np.arange(steps * num_envs)
    for _ in range(4):
        np.random.shuffle(order)
        for start in range(0, len(order), 256):
            chosen = order[start : start + 256]
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


for _ in range(3):
    iterate()
began = time.process_time()
for _ in range(30):
    iterate()
tell("torch", cost=30 * steps * num_envs / (time.process_time() - began))
