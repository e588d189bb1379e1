"""Slow, obvious references of the formulas in ding_lite/rl, one number at a time."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional as F


def n_step(steps, *, n, gamma):
    """Join the steps of one environment, looking ahead from each of them.

    Args:
        steps: (obs, action, reward, next_obs, terminated, truncated) of consecutive env steps.

    Returns:
        (obs, action, reward, next_obs, terminated, truncated, num_steps) of each env step with
        n steps or the end of its episode after it.
    """
    joined = []
    for start, (obs, action, *_) in enumerate(steps):
        reward, num_steps, ended = 0.0, 0, False
        while num_steps < n and start + num_steps < len(steps) and not ended:
            _, _, step_reward, next_obs, terminated, truncated = steps[start + num_steps]
            reward += gamma**num_steps * step_reward
            num_steps += 1
            ended = terminated or truncated
        if num_steps == n or ended:
            joined.append((obs, action, reward, next_obs, terminated, truncated, num_steps))
    return joined


def bootstrapped_targets(reward_B, terminated_B, num_steps_B, next_value_B, *, gamma):
    targets = []
    for reward, terminated, num_steps, next_value in zip(
        reward_B, terminated_B, num_steps_B, next_value_B, strict=True
    ):
        discount = 1.0
        for _ in range(int(num_steps)):
            discount *= gamma
        targets.append(float(reward) if terminated else float(reward + discount * next_value))
    return targets


def mlp(named, x_BI, *, num_hidden):
    for layer in range(num_hidden):
        x_BI = F.relu(F.linear(x_BI, named[f"torso.{layer}.weight"], named[f"torso.{layer}.bias"]))
    return F.linear(x_BI, named["head.weight"], named["head.bias"])


class PlainDQN:
    """DQN updates as a tutorial would write them."""

    def __init__(self, weights, *, config, convs=()):
        self.config = config
        self.named = {name: t.clone().requires_grad_() for name, t in weights.items()}
        self.target = {name: t.clone() for name, t in weights.items()}
        self.adam = torch.optim.Adam(self.named.values(), lr=config.lr)
        self.num_updates = 0
        self.convs = convs

    def learn(self, batch):
        with torch.no_grad():
            next_target = self.q_values(self.target, batch.next_obs)
            if self.config.double:
                best = self.q_values(self.named, batch.next_obs).argmax(1, keepdim=True)
                next_value = next_target.gather(1, best).squeeze(1)
            else:
                next_value = next_target.max(1).values
            discount = self.config.gamma**batch.num_steps * (1.0 - batch.terminated.float())
            target = batch.reward + discount * next_value

        q = self.q_values(self.named, batch.obs).gather(1, batch.action[:, None]).squeeze(1)
        self.td_error = (q - target).abs().detach()
        loss_of = F.smooth_l1_loss if self.config.loss == "huber" else F.mse_loss
        weight = getattr(batch, "weight", torch.ones(len(q)))
        loss = (weight * loss_of(q, target, reduction="none")).mean()
        self.adam.zero_grad()
        loss.backward()
        if self.config.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.named.values(), self.config.max_grad_norm)
        self.adam.param_groups[0]["lr"] = self.step_size()
        self.adam.step()

        self.num_updates += 1
        if self.num_updates % self.config.target_every == 0:
            with torch.no_grad():
                for name, tensor in self.target.items():
                    tensor += self.config.target_tau * (self.named[name] - tensor)
        return loss.item()

    def step_size(self):
        config = self.config
        if config.lr_end is None:
            return config.lr
        if self.num_updates >= config.lr_updates:
            return config.lr_end
        return config.lr + self.num_updates * (config.lr_end - config.lr) / config.lr_updates

    def q_values(self, named, obs):
        x = obs.float() / 255.0 if obs.dtype == torch.uint8 else obs
        num_convs = sum(name.startswith("conv") for name in named) // 2
        for layer in range(num_convs):
            weight, bias = named[f"conv.{layer}.weight"], named[f"conv.{layer}.bias"]
            stride, padding = self.convs[layer].stride, self.convs[layer].padding
            x = F.relu(F.conv2d(x, weight, bias, stride=stride, padding=padding))
        x = x.flatten(1)
        depth = len(self.config.hidden)
        if not self.config.dueling:
            return mlp(named, x, num_hidden=depth)
        for layer in range(depth):
            x = F.relu(F.linear(x, named[f"torso.{layer}.weight"], named[f"torso.{layer}.bias"]))
        half = x.shape[1] // 2
        value = F.linear(x[:, :half], named["head.value.weight"], named["head.value.bias"])
        extra = F.linear(x[:, half:], named["head.advantage.weight"], named["head.advantage.bias"])
        return value + extra - extra.mean(1, keepdim=True)


def rows_of(transitions):
    """Take transitions apart: one tuple of plain values each."""
    fields = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "num_steps")
    columns = [np.asarray(getattr(transitions, name)).tolist() for name in fields]
    return [
        tuple(tuple(x) if isinstance(x, list) else x for x in row)
        for row in zip(*columns, strict=True)
    ]


class PlainTree:
    """Values in a list, summed up one after the other."""

    def __init__(self, capacity):
        self.values = [0.0] * capacity

    def draw(self, uniforms):
        slots = []
        for part, uniform in enumerate(uniforms):
            rest = (uniform + part) * (sum(self.values) / len(uniforms))
            before = 0.0
            for slot, value in enumerate(self.values):
                if before + value > rest:
                    slots.append(slot)
                    break
                before += value
        return slots


class PlainPrioritized:
    """Transitions in a list, each with its number and its priority to the power of alpha."""

    def __init__(self, capacity, alpha, offset):
        self.capacity, self.alpha, self.offset = capacity, alpha, offset
        self.count = 0
        self.held = {}

    def add(self, rows):
        highest = max((value for _, value in self.held.values()), default=1.0)
        for row in rows:
            self.held[self.count] = (row, highest)
            self.count += 1
        for serial in sorted(self.held)[: -self.capacity]:
            del self.held[serial]

    def update(self, serials, priorities):
        found = 0
        for serial, priority in zip(serials, priorities, strict=True):
            if serial in self.held:
                row, _ = self.held[serial]
                self.held[serial] = (row, (priority + self.offset) ** self.alpha)
                found += 1
        return found

    def weights(self, serials, beta):
        """Schaul et al. 2016, section 3.4: (N P(i))^-beta over the highest of the batch."""
        total = sum(value for _, value in self.held.values())
        weights = []
        for serial in serials:
            _, value = self.held[serial]
            weights.append((len(self.held) * value / total) ** -beta)
        return [weight / max(weights) for weight in weights]


def gae(discounts, rewards, values, next_values, truncated, *, gae_lambda):
    """Schulman et al. 2016, equation 16, for one environment: a sum of errors for each step."""
    advantages = []
    for start in range(len(rewards)):
        advantage, weight = 0.0, 1.0
        for time in range(start, len(rewards)):
            error = rewards[time] + discounts[time] * next_values[time] - values[time]
            advantage += weight * error
            weight *= gae_lambda * discounts[time]
            if truncated[time] or discounts[time] == 0.0:
                break
        advantages.append(advantage)
    return advantages


def vtrace(log_rhos, discounts, rewards, values, next_values, truncated, *, rho_clip, c_clip):
    """Espeholt et al. 2018, equation 1, for one environment: a sum of products for each step.

    Returns:
        The targets, and the advantages rho_s (r_s + gamma v_(s+1) - V(x_s)).
    """
    targets = []
    for start in range(len(rewards)):
        target, product = values[start], 1.0
        for time in range(start, len(rewards)):
            rho, c = (min(clip, math.exp(log_rhos[time])) for clip in (rho_clip, c_clip))
            error = rho * (rewards[time] + discounts[time] * next_values[time] - values[time])
            target += product * error
            product *= discounts[time] * c
            if truncated[time] or discounts[time] == 0.0:
                break
        targets.append(target)

    advantages = []
    for time, reward in enumerate(rewards):
        goes_on = time + 1 < len(rewards) and not truncated[time] and discounts[time] > 0.0
        next_target = targets[time + 1] if goes_on else next_values[time]
        rho = min(rho_clip, math.exp(log_rhos[time]))
        advantages.append(rho * (reward + discounts[time] * next_target - values[time]))
    return targets, advantages
