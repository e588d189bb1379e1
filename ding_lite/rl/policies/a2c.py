"""A2C: advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783).

One update for each rollout: a step along the gradient of the log-probabilities, each weighted by
its advantage. The paper's A3C is the same with `gradients` sent to a gradient server.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from ding_lite.rl.replay.rollouts import join_rollouts, merged, next_values, unseen_obs
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import check_all, inside, suggests


@suggests
@dataclass(frozen=True, kw_only=True)
class A2CConfig(ActorCriticConfig):
    """Settings of A2C. The defaults suit small tasks such as CartPole."""

    lr: float = 3e-3
    """Adam's step size. Higher learns faster, too high forgets; 3e-4 to 5e-3 are usual, and the
    larger the network, the lower."""
    gae_lambda: float = 0.95
    """Lambda of GAE: 1 takes all rewards of the rollout, as the paper does; lower has less variance
    and more bias. 0.9 to 1 are usual."""
    normalize_advantage: bool = True
    """Normalise the advantages of an update to mean 0 and standard deviation 1, so that the scale
    of rewards does not matter. The paper does not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_all(inside(0.0, 1.0, gae_lambda=self.gae_lambda))


class A2C(ActorCriticPolicy):
    """On-policy actor-critic for discrete or continuous actions; one update per rollout.

    Args:
        spec: The spec of the environments, `envs.spec`.
        config: The settings.
        device: The device of the network, as PyTorch names it.

    Raises:
        ConfigError: If there is no such device, or a setting does not fit the environment.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("CartPole-v1", 2)
        >>> action, log_prob = A2C(envs.spec).explore(envs.obs)
        >>> action.shape, np.exp(log_prob).round(1).tolist()
        ((2,), [0.5, 0.5])
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: A2CConfig | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        """Initialise the weights."""
        self.config = config or A2CConfig()
        super().__init__(spec, self.config, device=device)

    def learn(self, rollouts: Sequence[Rollout], /) -> dict[str, float]:
        """Do one update: one step of Adam along the mean gradient of all env steps.

        The loss is -mean(log pi(a|x) A) + value_coef mean((V(x) - target)^2) - entropy_coef H.

        Args:
            rollouts: All of the same length.

        Returns:
            `loss`, its parts `policy_loss`, `value_loss` and `entropy`, and `grad_norm`.

        Raises:
            ShapeError: If they are not of the environment it was made for.
            NonFiniteError: If the loss is NaN or infinite. The weights are as before then.
        """
        rollout = join_rollouts(rollouts, self.spec)
        metrics = self._compute(rollout)
        metrics["grad_norm"] = self._improve()
        self._has_seen(rollout)
        return metrics

    def gradients(self, unrolls: Sequence[Rollout]) -> tuple[Tensor, dict[str, float]]:
        """Compute the gradient of one update, [P], and its metrics, and change nothing."""
        metrics = self._compute(join_rollouts(unrolls, self.spec))
        return self._net.grads.flat.clone(), metrics

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite raises instead
    def _compute(self, rollout: Rollout) -> dict[str, float]:
        """Write the gradient of the loss; return the metrics."""
        config, shape_TN = self.config, rollout.reward.shape
        outputs_BD, value_B, saved = self._net.forward(self._inputs(merged(rollout.obs)))
        value_TN = value_B.reshape(shape_TN)
        found = gae(
            np.float32(config.gamma) * ~rollout.terminated,
            rollout.reward,
            value_TN,
            next_values(rollout, value_TN, self.values(unseen_obs(rollout))),
            rollout.truncated,
            gae_lambda=config.gae_lambda,
        )
        advantage_B = merged(found.advantage_TB)
        if config.normalize_advantage:
            advantage_B = normalized(advantage_B)

        likely = self._distribution.judge(outputs_BD, merged(rollout.action))
        grad_B = advantage_B * np.float32(-1.0 / len(advantage_B))
        loss = float(grad_B @ likely.log_prob_B)
        error_B = value_B - merged(found.target_TB)
        return self._write_gradient(saved, likely, loss, grad_B, error_B)

    def _twin(self) -> Self:
        return type(self)(self.spec, self.config, device=self.device)
