"""PPO: several updates from each rollout, each bounded by a clipped probability ratio.

Schulman et al. 2017 (arXiv:1707.06347), with the advantages of Schulman et al. 2016
(arXiv:1506.02438).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ding_lite.rl.batch import Rollout
from ding_lite.rl.formulas.returns import gae
from ding_lite.rl.policies.actor_critic import (
    ActorCriticConfig,
    ActorCriticPolicy,
    normalized,
)
from ding_lite.rl.policies.minibatches import Minibatch
from ding_lite.rl.replay.rollouts import join_rollouts, merged, next_values, unseen_obs
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import check_all, inside, positive, suggests, whole


@suggests
@dataclass(frozen=True, kw_only=True)
class PPOConfig(ActorCriticConfig):
    """Settings of PPO. The defaults suit small tasks such as CartPole."""

    lr: float = 2e-3
    """Adam's step size. Higher learns faster, too high forgets; 1e-4 to 2e-3 are usual, and the
    larger the network, the lower."""
    gae_lambda: float = 0.95
    """Lambda of GAE: 0 relies on the values, 1 on the rewards; 0.9 to 0.97 are usual."""
    clip: float = 0.2
    """The bound on the relative change of an action's probability in all updates of a rollout;
    beyond it the gradient is 0. 0.1 to 0.3 are usual."""
    epochs: int = 4
    """Passes over each rollout. More learns more from each env step and takes longer; 3 to 20 are
    usual."""
    batch_size: int = 64
    """The env steps of one update. Fewer are more updates an epoch; 64 to 4,096 are
    usual."""
    normalize_advantage: bool = True
    """Normalise the advantages of an update to mean 0 and standard deviation 1, so that the scale
    of rewards does not matter."""
    target_kl: float | None = None
    """Skip the rest of a rollout's updates once the policy's divergence from the one that collected
    it is above this, in nats; 0.01 to 0.05 are usual. None does all updates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_all(
            inside(0.0, 1.0, gae_lambda=self.gae_lambda),
            positive(clip=self.clip),
            whole(1, epochs=self.epochs, batch_size=self.batch_size),
            [] if self.target_kl is None else positive(target_kl=self.target_kl),
        )


class PPO(ActorCriticPolicy):
    """On-policy actor-critic for discrete or continuous actions; several updates per rollout.

    Args:
        spec: The spec of the environments, `envs.spec`.
        config: The settings.
        device: The device of the network, as PyTorch names it.

    Raises:
        ConfigError: If there is no such device, or a setting does not fit the environment.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("Pendulum-v1", 2)
        >>> action, log_prob = PPO(envs.spec).explore(envs.obs)
        >>> action.shape, log_prob.shape
        ((2, 1), (2,))
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: PPOConfig | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        """Initialise the weights."""
        self.config = config or PPOConfig()
        super().__init__(spec, self.config, device=device)

    def learn(self, rollouts: Sequence[Rollout], /) -> dict[str, float]:
        """Go `epochs` times through all env steps, in minibatches, with a step of Adam for each.

        With the ratio r of an action's probability to what it was, the loss is
        -mean(min(r A, clip(r, 1 - clip, 1 + clip) A)) + value_coef mean((V(x) - target)^2)
        - entropy_coef H. Advantages and targets are computed once, before the first step.

        Args:
            rollouts: All of the same length.

        Returns:
            Of the last minibatch `loss`, its parts `policy_loss`, `value_loss` and `entropy`,
            `approx_kl` (the divergence from the policy that collected, in nats), `clip_fraction`
            (the share of actions beyond the clip) and `grad_norm`.

        Raises:
            ShapeError: If they are not of the environment it was made for.
            NonFiniteError: If a loss is NaN or infinite. That step is not taken then.
        """
        rollout = join_rollouts(rollouts, self.spec)
        rows = self._rows(rollout)
        metrics: dict[str, float] = {}
        limit = math.inf if self.config.target_kl is None else self.config.target_kl
        for part in self._minibatches(rows):
            metrics = self._compute(part)
            if metrics["approx_kl"] > limit:
                break
            metrics["grad_norm"] = self._improve()
        self._has_seen(rollout)
        return metrics

    def gradients(self, unrolls: Sequence[Rollout]) -> tuple[Tensor, dict[str, float]]:
        """Compute the gradient of all env steps at once, [P], and its metrics; change nothing."""
        metrics = self._compute(self._rows(join_rollouts(unrolls, self.spec)))
        return self._net.grads.flat.clone(), metrics

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite raises instead
    def _rows(self, rollout: Rollout) -> Minibatch:
        """Compute advantages and targets."""
        config, obs = self.config, merged(rollout.obs)
        num_seen = len(obs)
        value_M = self.values(np.concatenate((obs, unseen_obs(rollout))))
        value_TN = value_M[:num_seen].reshape(rollout.reward.shape)
        found = gae(
            np.float32(config.gamma) * ~rollout.terminated,
            rollout.reward,
            value_TN,
            next_values(rollout, value_TN, value_M[num_seen:]),
            rollout.truncated,
            gae_lambda=config.gae_lambda,
        )
        return Minibatch(
            self._inputs(obs),
            merged(rollout.action),
            merged(rollout.log_prob),
            merged(found.advantage_TB),
            merged(found.target_TB),
        )

    def _minibatches(self, rows: Minibatch) -> Iterator[Minibatch]:
        size = self.config.batch_size
        for _ in range(self.config.epochs):
            if len(rows) <= size:
                yield rows
                continue
            order = self._rng.permutation(len(rows))
            # As many as fit, of even size: a few left over would pull as much as all the others.
            for index_B in np.array_split(order, round(len(rows) / size)):
                yield rows.take(index_B)

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite raises instead
    def _compute(self, rows: Minibatch) -> dict[str, float]:
        """Write the gradient of the loss; return the metrics."""
        config, size = self.config, len(rows)
        outputs_BD, value_B, saved = self._net.forward(rows.obs)
        advantage_B = rows.advantage_B
        if config.normalize_advantage:
            advantage_B = normalized(advantage_B)

        likely = self._distribution.judge(outputs_BD, rows.action)
        log_ratio_B = likely.log_prob_B - rows.log_prob_B
        ratio_B = np.exp(log_ratio_B)
        gain_B = ratio_B * advantage_B
        clipped_B = np.clip(ratio_B, 1.0 - config.clip, 1.0 + config.clip)
        clipped_gain_B = clipped_B * advantage_B
        is_pulled_B = gain_B <= clipped_gain_B
        loss = -float(np.minimum(gain_B, clipped_gain_B).sum()) / size
        grad_B = gain_B * is_pulled_B * np.float32(-1.0 / size)
        metrics = self._write_gradient(saved, likely, loss, grad_B, value_B - rows.target_B)
        metrics["approx_kl"] = float((ratio_B - 1.0 - log_ratio_B).sum()) / size
        metrics["clip_fraction"] = 1.0 - float(np.count_nonzero(clipped_B == ratio_B)) / size
        return metrics

    def _twin(self) -> Self:
        return type(self)(self.spec, self.config, device=self.device)
