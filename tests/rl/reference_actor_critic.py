"""A2C, PPO and IMPALA as a tutorial would write them: torch's own layers, distributions and Adam.

Advantages come from the loops of `reference.py`, one environment at a time.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import distributions
from torch.nn import functional as F

from tests.rl import reference


class PlainActorCritic:
    """Updates with gradients from autograd."""

    def __init__(self, weights, *, spec, config, convs=()):
        self.spec, self.config, self.convs = spec, config, convs
        self.named = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
        self.adam = torch.optim.Adam(self.named.values(), lr=config.lr, eps=1e-5)
        self.num_updates = 0

    def outputs_and_values(self, obs):
        x = obs.float() / 255.0 if obs.dtype == torch.uint8 else obs
        if not self.convs:
            x = x.flatten(1)
            return self.run("actor", x), self.run("critic", x).squeeze(1)
        for layer, conv in enumerate(self.convs):
            weight, bias = (self.named[f"conv.{layer}.{part}"] for part in ("weight", "bias"))
            x = F.relu(F.conv2d(x, weight, bias, stride=conv.stride, padding=conv.padding))
        x = x.flatten(1)
        for layer in range(len(self.config.hidden)):
            x = F.relu(self.layer(f"torso.{layer}", x))
        return self.layer("actor.head", x), self.layer("critic.head", x).squeeze(1)

    def run(self, name, x):
        activation = {"tanh": torch.tanh, "relu": torch.relu}[self.config.activation]
        for layer in range(len(self.config.hidden)):
            x = activation(self.layer(f"{name}.{layer}", x))
        return self.layer(f"{name}.head", x)

    def layer(self, name, x):
        return F.linear(x, self.named[f"{name}.weight"], self.named[f"{name}.bias"])

    def distribution(self, outputs):
        space = self.spec.action_space
        if self.spec.num_actions is not None:
            return distributions.Categorical(logits=outputs)
        low, high = (torch.from_numpy(end.reshape(-1)) for end in (space.low, space.high))
        bounded = torch.isfinite(low) & torch.isfinite(high)
        middle = torch.where(bounded, (low + high) / 2, 0.0)
        unit = torch.where(bounded, (high - low) / 2, 1.0)
        std = unit * self.named["actor.log_std"].exp()
        return distributions.Independent(
            distributions.Normal(middle + unit * outputs, std.expand_as(outputs)), 1
        )

    def judge(self, rollout):
        """Return log_prob and entropy of each step [T, N], and the values before and behind."""
        flat = [
            torch.from_numpy(x.reshape(-1, *x.shape[2:])) for x in (rollout.obs, rollout.action)
        ]
        outputs, value = self.outputs_and_values(flat[0])
        found = self.distribution(outputs)
        action = flat[1] if self.spec.num_actions else flat[1].reshape(len(outputs), -1)
        shape = rollout.reward.shape
        with torch.no_grad():
            _, after = self.outputs_and_values(torch.from_numpy(rollout.last_obs))
            next_value = torch.cat((value.reshape(shape)[1:], after[None])).numpy().copy()
            for time, env, obs in zip(
                rollout.cut_time, rollout.cut_env, rollout.cut_obs, strict=True
            ):
                _, cut = self.outputs_and_values(torch.from_numpy(obs[None]))
                next_value[time, env] = cut.item()
        log_prob, entropy = found.log_prob(action), found.entropy()
        return *(x.reshape(shape) for x in (log_prob, entropy, value)), next_value

    def estimates(self, formula, rollout, value, next_value, **settings):
        """Run one of the loops of `reference.py` over each environment."""
        discount = self.config.gamma * (1.0 - rollout.terminated)
        columns = []
        for env in range(rollout.reward.shape[1]):
            given = [
                array[:, env].tolist()
                for array in (discount, rollout.reward, value, next_value, rollout.truncated)
            ]
            before = [settings["log_rho"][:, env].tolist()] if "log_rho" in settings else []
            rest = {name: value for name, value in settings.items() if name != "log_rho"}
            columns.append(formula(*before, *given, **rest))
        return columns

    def gae(self, rollout, value, next_value):
        columns = self.estimates(
            reference.gae, rollout, value, next_value, gae_lambda=self.config.gae_lambda
        )
        advantage = torch.tensor(np.array(columns, dtype=np.float32).T)
        return advantage, advantage + torch.from_numpy(value)

    def vtrace(self, rollout, log_rho, value, next_value):
        columns = self.estimates(
            *(reference.vtrace, rollout, value, next_value),
            log_rho=log_rho,
            rho_clip=self.config.rho_clip,
            c_clip=self.config.c_clip,
        )
        targets, advantages = (np.array(part, dtype=np.float32).T for part in zip(*columns))  # noqa: B905
        return torch.tensor(advantages), torch.tensor(targets)

    def normalized(self, advantage):
        if not self.config.normalize_advantage:
            return advantage
        return (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)

    def step(self, policy_loss, value, target, entropy):
        config = self.config
        loss = policy_loss + config.value_coef * F.mse_loss(value, target)
        loss = loss - config.entropy_coef * entropy.mean()
        self.adam.zero_grad()
        loss.backward()
        if config.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.named.values(), config.max_grad_norm)
        if config.lr_end is not None:
            share = min(self.num_updates / config.lr_updates, 1.0)
            self.adam.param_groups[0]["lr"] = config.lr + share * (config.lr_end - config.lr)
        self.adam.step()
        self.num_updates += 1
        return loss.item()


class PlainA2C(PlainActorCritic):
    """Mnih et al. 2016, algorithm S3, with the advantages of Schulman et al. 2016."""

    def learn(self, rollout):
        log_prob, entropy, value, next_value = self.judge(rollout)
        advantage, target = self.gae(rollout, value.detach().numpy(), next_value)
        policy_loss = -(log_prob * self.normalized(advantage)).mean()
        return self.step(policy_loss, value, target, entropy)


class PlainPPO(PlainActorCritic):
    """Schulman et al. 2017, equations 7 and 9."""

    def learn(self, rollout, orders=None):
        """Do all updates; return the last loss.

        Args:
            orders: For each update which env steps it takes; all of them if None.
        """
        with torch.no_grad():
            _, _, value, next_value = self.judge(rollout)
            advantage, target = self.gae(rollout, value.numpy(), next_value)
        everything = np.arange(rollout.reward.size)
        loss = 0.0
        for index in [everything] * self.config.epochs if orders is None else orders:
            log_prob, entropy, value, _ = (
                torch.as_tensor(x).flatten()[index] for x in self.judge(rollout)
            )
            ratio = (log_prob - torch.from_numpy(rollout.log_prob).flatten()[index]).exp()
            a = self.normalized(advantage.flatten()[index])
            clipped = ratio.clamp(1.0 - self.config.clip, 1.0 + self.config.clip)
            policy_loss = -torch.minimum(ratio * a, clipped * a).mean()
            loss = self.step(policy_loss, value, target.flatten()[index], entropy)
        return loss


class PlainIMPALA(PlainActorCritic):
    """Espeholt et al. 2018, section 4.2; the clip is that of Schulman et al. 2017, equation 7."""

    def learn(self, rollout, orders=None):
        """Do all updates; return the last loss.

        Args:
            orders: For each epoch which env steps each of its updates takes; all of them if None.
        """
        loss, everything = 0.0, [np.arange(rollout.reward.size)]
        for order in [everything] * self.config.epochs if orders is None else orders:
            log_prob, entropy, value, next_value = self.judge(rollout)
            log_rho = log_prob.detach().numpy() - rollout.log_prob
            advantage, target = self.vtrace(rollout, log_rho, value.detach().numpy(), next_value)
            plain = (advantage.numpy() / self.cut(log_rho)).flatten()
            for index in order:
                log_prob, entropy, value, _ = (
                    torch.as_tensor(x).flatten()[index] for x in self.judge(rollout)
                )
                log_rho_now = log_prob.detach().numpy() - rollout.log_prob.flatten()[index]
                rho = self.cut(log_rho_now)
                a = self.normalized_by_rho(torch.from_numpy(rho * plain[index]), rho)
                policy_loss = -(log_prob * self.clipped(a, np.exp(log_rho_now))).mean()
                loss = self.step(policy_loss, value, target.flatten()[index], entropy)
        return loss

    def cut(self, log_rho):
        return np.exp(np.minimum(log_rho, np.log(self.config.rho_clip)))

    def clipped(self, advantage, ratio):
        """Drop the advantages for which PPO's minimum has no gradient."""
        clip = self.config.clip
        if clip is None:
            return advantage
        rows = zip(advantage.tolist(), ratio.tolist(), strict=True)
        kept = [0.0 if (a > 0 and r > 1 + clip) or (a < 0 and r < 1 - clip) else a for a, r in rows]
        return torch.tensor(kept, dtype=torch.float32)

    def normalized_by_rho(self, advantage, rho):
        """Normalise advantages to mean 0 and deviation 1, weighted by the ratios."""
        if not self.config.normalize_advantage:
            return advantage
        shape = advantage.shape
        advantage, rho = advantage.flatten().tolist(), rho.flatten().tolist()
        plain = [a / r for a, r in zip(advantage, rho, strict=True)]
        mean = sum(r * a for r, a in zip(rho, plain, strict=True)) / sum(rho)
        variance = sum(r * (a - mean) ** 2 for r, a in zip(rho, plain, strict=True)) / sum(rho)
        found = [r * (a - mean) / variance**0.5 for r, a in zip(rho, plain, strict=True)]
        return torch.tensor(found, dtype=torch.float32).reshape(shape)
