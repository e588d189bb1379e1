"""SAC for choices, as an algorithm of one's own: an actor, two critics and a learned temperature.

The paper is Christodoulou 2019, arXiv:1910.07207. With few actions the mean over what the actor
may do is a sum, so nothing has to be sampled.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ding_lite import Task, middleware as mw
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import ReplayBuffer, TorchPolicy, TorchPolicyConfig, Transitions, make_envs


@dataclass(frozen=True, kw_only=True)
class DiscreteSACConfig(TorchPolicyConfig):
    """The settings of SAC for choices."""

    lr: float = 3e-3
    gamma: float = 0.98
    n_step: int = 3
    hidden: int = 64
    """The width of the hidden layers."""
    tau: float = 0.02
    """The share of the learned weights in each update of the target networks."""
    alpha: float = 0.2
    """The temperature in the beginning: what a nat of entropy is worth, in reward."""
    entropy: float = 0.6
    """The entropy to keep, as a share of that of random actions."""


class DiscreteSAC(TorchPolicy[DiscreteSACConfig]):
    """Learns to act well and as randomly as it can."""

    def build(self) -> None:
        """Make the actor, the critics with their targets, and the temperature."""
        config, actions = self.config, self.spec.num_actions or 0
        self.actor, self.one, self.two = (self.network(actions) for _ in range(3))
        self.target_one = self.follow(self.one, tau=config.tau)
        self.target_two = self.follow(self.two, tau=config.tau)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(config.alpha)))
        self.least_entropy = config.entropy * math.log(actions)

    def network(self, actions: int) -> nn.Module:
        """Make a network with a number for each action."""
        inputs, hidden = self.spec.obs_shape[0], self.config.hidden
        first = [nn.Linear(inputs, hidden), nn.ReLU()]
        return nn.Sequential(
            *first, nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, actions)
        )

    def choose(self, obs: Tensor, explore: bool) -> Tensor:
        """Draw actions to explore; else take the likeliest ones."""
        logits = self.actor(obs)
        if not explore:
            return logits.argmax(-1)
        return torch.multinomial(logits.softmax(-1), 1)[:, 0]

    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Add up the losses of the critics, the actor and the temperature."""
        rows = torch.arange(len(batch), device=self.device)
        alpha = self.log_alpha.exp().detach()
        one, two = self.one(batch.obs), self.two(batch.obs)
        log_pi = self.actor(batch.obs).log_softmax(-1)
        pi = log_pi.exp()
        with torch.no_grad():
            next_log_pi = self.actor(batch.next_obs).log_softmax(-1)
            next_q = torch.minimum(self.target_one(batch.next_obs), self.target_two(batch.next_obs))
            discount = self.config.gamma**batch.num_steps * ~batch.terminated
            goal = batch.reward + discount * soft_value(next_log_pi, next_q, alpha)

        errors = one[rows, batch.action] - goal, two[rows, batch.action] - goal
        critics = errors[0] ** 2 + errors[1] ** 2
        actor = -soft_value(log_pi, torch.minimum(one, two).detach(), alpha)
        entropy = -(pi * log_pi).sum(-1).detach()
        temperature = self.log_alpha * (entropy - self.least_entropy)
        metrics = {"alpha": alpha, "entropy": entropy.mean(), "q_mean": one.mean()}
        return critics + actor + temperature, metrics | {"td_error": errors[0]}


def soft_value(log_pi: Tensor, q: Tensor, alpha: Tensor) -> Tensor:
    """Return the mean value of what a policy does, and the worth of its entropy: equation 10.

    Args:
        log_pi: The log-probability of each action, [B, A].
        q: Its value, [B, A].
        alpha: What a nat of entropy is worth.
    """
    return (log_pi.exp() * (q - alpha * log_pi)).sum(-1)


def main() -> None:
    """Train with the options of the command line."""
    options = parse_options(__doc__, env="CartPole-v1", max_env_steps=50_000, target=475.0)
    envs = make_envs(options.env, num_envs=8, seed=options.seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=options.seed + 1)
    config = DiscreteSACConfig(seed=options.seed)
    policy = DiscreteSAC(envs.spec, config)
    replay = ReplayBuffer(envs.spec, capacity=50_000, seed=options.seed)
    parts = {"policy": policy, "replay": replay, "envs": envs, "eval_envs": eval_envs}
    with Run("discrete_sac", options, config=config) as run, Task() as task:
        task.use(mw.collect(policy, envs, steps=8))
        task.use(mw.add_to(replay))
        task.use(mw.train(policy, replay, updates=8))
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
