import time

import gymnasium
import torch
from measuring import settings, tell
from plain_ppo import PlainPPO
from torch.distributions import Categorical

num_envs, steps = 8, 128
envs = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")
ppo = PlainPPO(settings()["width"])
obs = torch.zeros(steps, num_envs, 4)
action, log_prob, reward, value, goes_on = (torch.zeros(steps, num_envs) for _ in range(5))
now = torch.as_tensor(envs.reset(seed=0)[0])


def iterate():
    global now
    for t in range(steps):
        obs[t] = now
        with torch.no_grad():
            found = Categorical(logits=ppo.actor(now))
            drawn = found.sample()
            action[t], log_prob[t] = drawn, found.log_prob(drawn)
            value[t] = ppo.critic(now).flatten()
        following, rewards, terminated, truncated, _ = envs.step(drawn.numpy())
        reward[t] = torch.as_tensor(rewards)
        goes_on[t] = torch.as_tensor(~(terminated | truncated))
        now = torch.as_tensor(following)
    ppo.learn((obs, action, log_prob, reward, value), now, goes_on, batch=256)


for _ in range(3):
    iterate()
began = time.process_time()
for _ in range(30):
    iterate()
tell("torch", cost=30 * steps * num_envs / (time.process_time() - began))
