"""Rainbow, as an algorithm of one's own: all that was once added to DQN, in one loss.

The paper is Hessel et al. 2018, arXiv:1710.02298: the distribution of returns by 51 atoms (C51),
noisy layers, dueling, double DQN, n-step returns and prioritized replay.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ding_lite import Task, middleware as mw
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import (
    PrioritizedReplay,
    TorchPolicy,
    TorchPolicyConfig,
    Transitions,
    linear,
    make_envs,
)


@dataclass(frozen=True, kw_only=True)
class RainbowConfig(TorchPolicyConfig):
    """The settings of Rainbow."""

    lr: float = 2e-3
    n_step: int = 3
    atoms: int = 51  # the values that a return may have, from v_min to v_max
    v_min: float = 0.0
    v_max: float = 100.0  # a reward of 1 a step for ever is 1 / (1 - gamma)
    hidden: int = 64
    tau: float = 0.01  # the share of the learned weights in each update of the target
    noise: float = 0.5  # of the layers at first: the more, the more they explore


class Noisy(nn.Module):
    """A linear layer that learns the noise of its weights (Fortunato et al. 2018)."""

    def __init__(self, inputs: int, outputs: int, noise: float) -> None:
        """Begin with the same noise everywhere."""
        super().__init__()
        self.mean, self.spread = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)
        for parameter in self.spread.parameters():
            nn.init.constant_(parameter, noise / math.sqrt(inputs))

    def forward(self, x: Tensor, noisy: bool) -> Tensor:
        """Draw noise for each input and each output, and let it change the weights."""
        if not noisy:
            return self.mean(x)
        drawn = torch.randn_like(x[0]), torch.randn_like(self.mean.bias)
        of_inputs, of_outputs = (noise.sign() * noise.abs().sqrt() for noise in drawn)
        return self.mean(x) + of_outputs * self.spread(x * of_inputs)


class Atoms(nn.Module):
    """Returns the log-probability of each atom of each action, dueling: [B, actions, atoms]."""

    def __init__(self, inputs: int, actions: int, config: RainbowConfig) -> None:
        """Make a torso, and a noisy layer for values and advantages."""
        super().__init__()
        self.torso = nn.Sequential(nn.Linear(inputs, config.hidden), nn.ReLU())
        self.hidden = Noisy(config.hidden, config.hidden, config.noise)
        self.heads = Noisy(config.hidden, (1 + actions) * config.atoms, config.noise)
        self.shape = (1 + actions, config.atoms)

    def forward(self, obs: Tensor, noisy: bool) -> Tensor:
        """Join values and advantages."""
        features = torch.relu(self.hidden(self.torso(obs), noisy))
        heads = self.heads(features, noisy).unflatten(-1, self.shape)
        value, advantage = heads[:, :1], heads[:, 1:]
        return (value + advantage - advantage.mean(1, keepdim=True)).log_softmax(-1)


class Rainbow(TorchPolicy[RainbowConfig]):
    """Learns the distribution of the return of each action."""

    def build(self) -> None:
        """Make the network, its target and the atoms."""
        config = self.config
        self.net = Atoms(self.spec.obs_shape[0], self.spec.num_actions or 0, config)
        self.target = self.follow(self.net, tau=config.tau)
        self.atoms = torch.linspace(config.v_min, config.v_max, config.atoms, device=self.device)

    def choose(self, obs: Tensor, explore: bool) -> Tensor:
        """Take the best action; the noise of the weights explores."""
        return self.q_values(self.net(obs, noisy=explore)).argmax(-1)

    def q_values(self, log_p: Tensor) -> Tensor:
        """Return the mean of each distribution."""
        return (log_p.exp() * self.atoms).sum(-1)

    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute how far each distribution is from the projected one of its target."""
        rows = torch.arange(len(batch), device=self.device)
        log_p = self.net(batch.obs, noisy=True)[rows, batch.action]
        with torch.no_grad():
            best = self.q_values(self.net(batch.next_obs, noisy=True)).argmax(-1)
            later = self.target(batch.next_obs, noisy=True)[rows, best].exp()
            discount = self.config.gamma**batch.num_steps * ~batch.terminated
            values: Any = self.atoms * discount[:, None] + batch.reward[:, None]
            goal = project(values, later, self.atoms)
        loss = F.kl_div(log_p, goal, reduction="none").sum(-1)
        return loss, {"q_mean": self.q_values(log_p).mean(), "td_error": loss}


def project(values: Tensor, p: Tensor, atoms: Tensor) -> Tensor:
    """Share the probabilities of values, [B, V], among the two nearest atoms: [B, A].

    This is equation 7 of Bellemare et al. 2017, arXiv:1707.06887. Atoms, [A], are equally spaced;
    values outside of them count as the outermost ones.
    """
    distance = (values.clamp(atoms[0], atoms[-1])[:, None] - atoms[:, None]).abs()
    share = (1.0 - distance / (atoms[1] - atoms[0])).clamp(min=0.0)
    return (share * p[:, None]).sum(-1)


def main() -> None:
    """Train with the options of the command line."""
    options = parse_options(__doc__, env="CartPole-v1", max_env_steps=50_000, target=475.0)
    envs = make_envs(options.env, num_envs=8, seed=options.seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=options.seed + 1)
    config = RainbowConfig(seed=options.seed)
    policy = Rainbow(envs.spec, config)
    replay = PrioritizedReplay(envs.spec, capacity=50_000, seed=options.seed)
    parts = {"policy": policy, "replay": replay, "envs": envs, "eval_envs": eval_envs}
    with Run("rainbow", options, config=config) as run, Task() as task:
        task.use(mw.collect(policy, envs, steps=8))
        task.use(mw.add_to(replay))
        task.use(mw.train(policy, replay, updates=4, beta=linear(0.4, 1.0, steps=50_000)))
        task.use(mw.update_priorities(replay))
        task.use(mw.evaluate(policy, eval_envs, every=125, stop_at=options.target))
        task.use(mw.stop_at(env_step=options.max_env_steps))
        task.use(mw.checkpoint({**parts, "task": task}, run.checkpoint, every=250))
        task.use(run.time(task))
        task.use(mw.report(run, every=25))
        run.resume({**parts, "task": task})
        task.run()
        run.conclude(policy)


if __name__ == "__main__":
    run_program(main)
