"""Quantile regression DQN, as an algorithm of one's own: the distribution of returns, by quantiles.

The paper is Dabney et al. 2018, arXiv:1710.10044. The class is all that is written here; what
trains it is what trains the built-in policies.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ding_lite import Task, middleware as mw
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import (
    ReplayBuffer,
    TorchPolicy,
    TorchPolicyConfig,
    Transitions,
    linear,
    make_envs,
)


@dataclass(frozen=True, kw_only=True)
class QRDQNConfig(TorchPolicyConfig):
    """The settings of QR-DQN."""

    lr: float = 2e-3
    n_step: int = 3
    quantiles: int = 25
    """The quantiles of the return of each action. More are finer and slower."""
    hidden: int = 64
    """The width of the hidden layers."""
    tau: float = 0.01
    """The share of the learned weights in each update of the target network."""
    epsilon: float = 0.1
    """The share of random actions in the end."""
    epsilon_steps: int = 5_000
    """The env steps until then; they begin with random actions only."""


class QRDQN(TorchPolicy[QRDQNConfig]):
    """Learns quantiles of the return of each action; the best action has the greatest mean."""

    def build(self) -> None:
        """Make the network, its target, and the middle of each quantile."""
        config, self.actions = self.config, self.spec.num_actions or 0
        self.net = nn.Sequential(
            nn.Linear(self.spec.obs_shape[0], config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, self.actions * config.quantiles),
            nn.Unflatten(-1, (self.actions, config.quantiles)),
        )
        self.target = self.follow(self.net, tau=config.tau)
        self.levels = (torch.arange(config.quantiles, device=self.device) + 0.5) / config.quantiles
        self.epsilon_at = linear(1.0, config.epsilon, steps=config.epsilon_steps)

    def choose(self, obs: Tensor, explore: bool) -> Tensor:
        """Take the best actions, and a share of random ones to explore."""
        best = self.net(obs).mean(-1).argmax(-1)
        if not explore:
            return best
        is_random = torch.rand(best.shape, device=self.device) < self.epsilon_at(self.env_step)
        return torch.where(is_random, torch.randint_like(best, self.actions), best)

    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Compare each quantile with all those of the target, double DQN choosing the action."""
        rows = torch.arange(len(batch), device=self.device)
        theta = self.net(batch.obs)[rows, batch.action]
        with torch.no_grad():
            best = self.net(batch.next_obs).mean(-1).argmax(-1)
            later = self.target(batch.next_obs)[rows, best]
            discount = self.config.gamma**batch.num_steps * ~batch.terminated
            goal = batch.reward[:, None] + discount[:, None] * later
        error = goal[:, None, :] - theta[:, :, None]
        loss = quantile_huber(error, self.levels).mean(2).sum(1)
        return loss, {"q_mean": theta.mean(), "td_error": error.detach().mean((1, 2))}


def quantile_huber(error: Tensor, levels: Tensor) -> Tensor:
    """Weigh the Huber loss of errors by the quantile: equation 10 of the paper, with kappa = 1.

    Args:
        error: Goals minus quantiles, [B, quantiles, goals].
        levels: The middle of each quantile, from 0 to 1.
    """
    size = error.abs()
    huber = torch.where(size <= 1.0, 0.5 * error**2, size - 0.5)
    return (levels[:, None] - (error.detach() < 0.0).float()).abs() * huber


def main() -> None:
    """Train with the options of the command line."""
    options = parse_options(__doc__, env="CartPole-v1", max_env_steps=50_000, target=475.0)
    envs = make_envs(options.env, num_envs=8, seed=options.seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=options.seed + 1)
    config = QRDQNConfig(seed=options.seed)
    policy = QRDQN(envs.spec, config)
    replay = ReplayBuffer(envs.spec, capacity=50_000, seed=options.seed)
    parts = {"policy": policy, "replay": replay, "envs": envs, "eval_envs": eval_envs}
    with Run("qr_dqn", options, config=config) as run, Task() as task:
        task.use(mw.collect(policy, envs, steps=8))
        task.use(mw.add_to(replay))
        task.use(mw.train(policy, replay, updates=4))
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
