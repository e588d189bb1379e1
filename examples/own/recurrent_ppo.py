"""PPO with a recurrent network, in plain PyTorch (Schulman et al. 2017, arXiv:1707.06347).

A GRU remembers what observations do not show. Minibatches are whole sequences of some
environments; states begin anew with each episode.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ding_lite import Task, middleware as mw
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import TensorRollout, TorchPolicyConfig, TorchRolloutPolicy, make_envs


@dataclass(frozen=True, kw_only=True)
class RecurrentPPOConfig(TorchPolicyConfig):
    """Settings of the algorithm."""

    lr: float = 1e-3
    max_grad_norm: float | None = 0.5
    width: int = 64
    gae_lambda: float = 0.95
    clip: float = 0.2
    epochs: int = 8
    minibatches: int = 2
    value_coef: float = 0.5
    entropy_coef: float = 0.0


@dataclass
class Sequences:
    """Whole sequences of some environments, [T, n]."""

    obs: Tensor
    action: Tensor
    ended: Tensor
    state: Tensor
    log_prob: Tensor
    advantage: Tensor
    target: Tensor


class RecurrentPPO(TorchRolloutPolicy[RecurrentPPOConfig]):
    """PPO with a GRU for the actor and one for the critic."""

    def build(self) -> None:
        """Make the network."""
        width, num_inputs = self.config.width, self.spec.obs_shape[0]
        self.state_size = 2 * width
        self.actor_cell, self.critic_cell = (nn.GRUCell(num_inputs, width) for _ in range(2))
        self.actor, self.critic = nn.Linear(width, self.spec.num_actions or 0), nn.Linear(width, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def step(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute logits, values and the next states of one time step."""
        for_actor, for_critic = state.chunk(2, dim=-1)
        for_actor = self.actor_cell(obs, for_actor)
        for_critic = self.critic_cell(obs, for_critic)
        state = torch.cat((for_actor, for_critic), dim=-1)
        return self.actor(for_actor), self.critic(for_critic).squeeze(-1), state

    def choose(self, obs: Tensor, explore: bool, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, their log-probabilities and the next states."""
        logits, _, state = self.step(obs, state)
        log_probs = logits.log_softmax(-1)
        drawn = torch.multinomial(log_probs.exp(), 1)
        action = drawn if explore else logits.argmax(-1, keepdim=True)
        return action.squeeze(-1), log_probs.gather(-1, action).squeeze(-1), state

    def unroll(self, obs: Tensor, ended: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute logits and values, [T, n], and the states behind each step, [T, n, S]."""
        found = []
        for obs_n, ended_n in zip(obs, ended, strict=True):
            logits, value, state = self.step(obs_n, state)
            found.append((logits, value, state))
            state = state * ~ended_n[:, None]
        logits_Tn, value_Tn, state_Tn = map(torch.stack, zip(*found, strict=True))
        return logits_Tn, value_Tn, state_Tn

    def batches(self, rollout: TensorRollout) -> Iterator[Sequences]:
        """Compute advantages once, then yield some environments at a time."""
        config = self.config
        assert rollout.state is not None
        _, value, behind = self.unroll(rollout.obs, rollout.ended, rollout.state)
        last_state = behind[-1] * ~rollout.ended[-1][:, None]
        _, last, _ = self.step(rollout.last_obs, last_state)
        _, cut, _ = self.step(rollout.cut_obs, behind[rollout.cut_time, rollout.cut_env])
        found = rollout.advantages(
            value,
            rollout.next_values(value, last, cut),
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        advantage = found.advantage_TB
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(config.epochs):
            order = torch.randperm(value.shape[1], device=self.device)
            for some in order.chunk(min(config.minibatches, len(order))):
                yield Sequences(
                    rollout.obs[:, some],
                    rollout.action[:, some],
                    rollout.ended[:, some],
                    rollout.state[some],
                    rollout.log_prob[:, some],
                    advantage[:, some],
                    found.target_TB[:, some],
                )

    def loss(self, batch: Sequences) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the clipped loss, with those of the values and of the entropy."""
        config = self.config
        logits, value, _ = self.unroll(batch.obs, batch.ended, batch.state)
        log_probs = logits.log_softmax(-1)
        log_prob = log_probs.gather(-1, batch.action[..., None]).squeeze(-1)
        ratio = (log_prob - batch.log_prob).exp()
        clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
        gain = torch.minimum(ratio * batch.advantage, clipped * batch.advantage).mean()
        value_loss = (value - batch.target).square().mean()
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        loss = -gain + config.value_coef * value_loss - config.entropy_coef * entropy
        return loss, {"value_loss": value_loss, "entropy": entropy}


def main() -> None:
    """Train with the options of the command line."""
    options = parse_options(__doc__, env="CartPole-v1", max_env_steps=200_000, target=475.0)
    envs = make_envs(options.env, num_envs=16, seed=options.seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=options.seed + 1)
    policy = RecurrentPPO(envs.spec, RecurrentPPOConfig(seed=options.seed))
    parts = {"policy": policy, "envs": envs, "eval_envs": eval_envs}
    with Run("recurrent_ppo", options, config=policy.config) as run, Task() as task:
        task.use(mw.collect(policy, envs, unroll=32))
        task.use(mw.train(policy))
        task.use(mw.evaluate(policy, eval_envs, every=10, stop_at=options.target))
        task.use(mw.stop_at(env_step=options.max_env_steps))
        task.use(mw.checkpoint({**parts, "task": task}, run.checkpoint, every=20))
        task.use(run.time(task, every=5))
        task.use(mw.report(run, every=5))
        run.resume({**parts, "task": task})
        task.run()
        run.conclude(policy)


if __name__ == "__main__":
    run_program(main)
