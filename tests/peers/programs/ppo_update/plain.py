import numpy as np
import torch
from measuring import cost_of, settings, tell
from plain_ppo import PlainPPO

size, shape = settings(), (128, 8)
ppo = PlainPPO(size["width"])
obs, last_obs = torch.randn(*shape, 4), torch.randn(8, 4)
with torch.no_grad():
    value = ppo.critic(obs).squeeze(2)
log_prob, reward = torch.full(shape, np.log(0.5)), torch.ones(shape)
rollout = obs, torch.randint(2, shape), log_prob, reward, value
goes_on = (torch.rand(shape) >= 0.05).float()

updates = 4 * 1_024 // size["batch"]
cost = cost_of(lambda: ppo.learn(rollout, last_obs, goes_on, size["batch"]), number=1, repeats=5)
tell("torch", cost=cost / updates * 1e6)
