"""Slow, obvious references of DDPG, TD3 and SAC, with autograd and plain Adam."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

from tests.rl.reference import bootstrapped_targets


class Critic(nn.Module):
    """Q(x, a)."""

    def __init__(self, num_inputs, hidden):
        super().__init__()
        self.net = make_mlp((num_inputs, *hidden, 1))

    def forward(self, obs, action):
        return self.net(torch.cat((obs, action), dim=1)).squeeze(1)


class PlainBoxPolicy(ABC):
    """The base of the three; it starts with the weights of another policy.

    Args:
        policy: The policy to copy weights and random numbers from.
        draws: As the policy's own generator: a fresh one in the same state.
    """

    num_critics: int

    def __init__(self, policy, draws):
        self.config, self.spec, self.draws = policy.config, policy.spec, draws
        weights = policy.state_dict()["weights"]
        self.size = int(np.prod(policy.spec.action_space.shape))
        num_obs = policy.spec.obs_shape[0]
        hidden = self.config.hidden
        self.actor = make_mlp((num_obs, *hidden, self.num_outputs()))
        for layer, linear in enumerate(linears(self.actor)):
            name = f"torso.{layer}" if layer < len(hidden) else "head"
            load(linear, weights[f"actor.{name}.weight"], weights[f"actor.{name}.bias"])
        self.critics = [Critic(num_obs + self.size, hidden) for _ in range(self.num_critics)]
        for index, critic in enumerate(self.critics):
            for layer, linear in enumerate(linears(critic.net)):
                weight, bias = (weights[f"critics.{layer}.{part}"] for part in ("weight", "bias"))
                load(linear, weight[index], bias[index])
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critics = copy.deepcopy(self.critics)
        of_critics = [p for critic in self.critics for p in critic.parameters()]
        self.critic_adam = torch.optim.Adam(of_critics, lr=self.config.critic_lr)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=self.config.actor_lr)
        self.num_updates = 0
        self.all_obs = []

    def num_outputs(self):
        return self.size

    def unit(self, action):
        """From an action of the environment to -1 to 1."""
        low, high = (
            torch.from_numpy(x) for x in (self.spec.action_space.low, self.spec.action_space.high)
        )
        return 2.0 * (action - low) / (high - low) - 1.0

    def draw(self, count):
        return torch.from_numpy(self.draws.standard_normal((count, self.size), dtype=np.float32))

    @abstractmethod
    def next_values(self, next_obs):
        """Estimate the values of the next observations."""

    @abstractmethod
    def improve_actor(self, obs):
        """Step the actor along the critics' values."""

    def learn(self, batch):
        if self.config.normalize_obs:
            batch = self.normalized(batch)
        with torch.no_grad():
            target = self.targets(batch, self.next_values(batch.next_obs))
        action = self.unit(batch.action)
        self.errors = [critic(batch.obs, action) - target for critic in self.critics]
        weight = getattr(batch, "weight", 1.0)
        loss = sum((weight * error**2).mean() for error in self.errors)
        step(self.critic_adam, loss)
        self.num_updates += 1
        self.improve_actor(batch.obs)
        return loss.item()

    def normalized(self, batch):
        self.all_obs.append(batch.obs.double())
        seen = torch.cat(self.all_obs)
        mean, std = seen.mean(0), seen.std(0, correction=0)
        obs, next_obs = (
            ((each - mean) / std).clamp(-10.0, 10.0).float() for each in (batch.obs, batch.next_obs)
        )
        return replace(batch, obs=obs, next_obs=next_obs)

    def targets(self, batch, next_value):
        rows = batch.reward, batch.terminated, batch.num_steps, next_value
        return torch.tensor(bootstrapped_targets(*rows, gamma=self.config.gamma))

    def td_error(self):
        """Return the error of each value, as a mean over the critics."""
        return sum(error.detach().abs() for error in self.errors) / len(self.errors)

    def follow(self, targets, sources):
        """theta' <- tau theta + (1 - tau) theta'."""
        tau = self.config.target_tau
        with torch.no_grad():
            for target, source in zip(targets, sources, strict=True):
                for slow, fast in zip(target.parameters(), source.parameters(), strict=True):
                    slow.lerp_(fast, tau)

    def state(self):
        """Return all weights under the policy's names."""
        found = {}
        for prefix, actor, critics in (
            ("weights", self.actor, self.critics),
            ("target", self.target_actor, self.target_critics),
        ):
            layers = linears(actor)
            for layer, linear in enumerate(layers):
                name = f"torso.{layer}" if layer < len(layers) - 1 else "head"
                found[prefix, f"actor.{name}.weight"] = linear.weight.detach()
                found[prefix, f"actor.{name}.bias"] = linear.bias.detach()
            for layer, together in enumerate(zip(*(linears(c.net) for c in critics), strict=True)):
                weights, biases = (
                    [getattr(one, part).detach() for one in together] for part in ("weight", "bias")
                )
                found[prefix, f"critics.{layer}.weight"] = torch.stack(weights)
                found[prefix, f"critics.{layer}.bias"] = torch.stack(biases)
        return found


class PlainDDPG(PlainBoxPolicy):
    """Lillicrap et al. 2016, algorithm 1."""

    num_critics = 1

    def next_values(self, next_obs):
        return self.target_critics[0](next_obs, self.target_actor(next_obs).tanh())

    def improve_actor(self, obs):
        self.actor_loss = -self.critics[0](obs, self.actor(obs).tanh()).mean()
        step(self.actor_adam, self.actor_loss)
        self.follow([self.target_actor, *self.target_critics], [self.actor, *self.critics])


class PlainTD3(PlainDDPG):
    """Fujimoto et al. 2018, algorithm 1."""

    num_critics = 2

    def next_values(self, next_obs):
        noise = self.config.target_noise * self.draw(len(next_obs))
        limit = self.config.target_noise_clip
        action = self.target_actor(next_obs).tanh() + noise.clamp(-limit, limit)
        values = [critic(next_obs, action.clamp(-1.0, 1.0)) for critic in self.target_critics]
        return torch.minimum(*values)

    def improve_actor(self, obs):
        if self.num_updates % self.config.policy_delay == 0:
            super().improve_actor(obs)


class PlainSAC(PlainBoxPolicy):
    """Haarnoja et al. 2018 (arXiv:1812.05905), algorithm 1."""

    num_critics = 2

    def __init__(self, policy, draws):
        super().__init__(policy, draws)
        self.log_alpha = torch.tensor([np.log(self.config.alpha)], dtype=torch.float32)
        self.log_alpha.requires_grad_()
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=self.config.actor_lr)

    def num_outputs(self):
        return 2 * self.size

    def sample(self, obs):
        """Draw tanh(z), z normal; its density is that of z over the slope of tanh (equation 21)."""
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        std = log_std.clamp(-20.0, 2.0).exp()
        z = mean + std * self.draw(len(obs))
        action = z.tanh()
        # In float64: 1 - tanh(z)^2 rounds to 0 early.
        slope = 1.0 - z.double().tanh() ** 2
        log_prob = Normal(mean, std).log_prob(z) - slope.log().float()
        return action, log_prob.sum(dim=1)

    def next_values(self, next_obs):
        action, log_prob = self.sample(next_obs)
        values = [critic(next_obs, action) for critic in self.target_critics]
        return torch.minimum(*values) - self.log_alpha.exp() * log_prob

    def improve_actor(self, obs):
        alpha = self.log_alpha.exp().detach()
        action, log_prob = self.sample(obs)
        values = [critic(obs, action) for critic in self.critics]
        self.actor_loss = (alpha * log_prob - torch.minimum(*values)).mean()
        step(self.actor_adam, self.actor_loss)
        if self.config.learn_alpha:
            wanted = self.config.target_entropy
            wanted = -float(self.size) if wanted is None else wanted
            loss = (-self.log_alpha.exp() * (log_prob.detach() + wanted)).mean()
            step(self.alpha_adam, loss)
        self.follow(self.target_critics, self.critics)

    def state(self):
        found = {
            key: value
            for key, value in super().state().items()
            if key[0] == "weights" or not key[1].startswith("actor")
        }
        return {**found, ("weights", "log_alpha"): self.log_alpha.detach()}


def make_mlp(sizes):
    layers = []
    for num_inputs, num_outputs in pairwise(sizes):
        layers += [nn.Linear(num_inputs, num_outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def linears(mlp):
    return [layer for layer in mlp if isinstance(layer, nn.Linear)]


def load(linear, weight, bias):
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)


def step(adam, loss):
    adam.zero_grad()
    loss.backward()
    adam.step()
