"""A2C: advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783).

One update for each rollout: a step along the gradient of the log-probabilities, each weighted by
its advantage. The paper's A3C differs only in that `gradients` are sent to a gradient server.
"""

from __future__ import annotations

from dataclasses import dataclass

from ding_lite.rl.batch import Rollout
from ding_lite.rl.formulas.policy_losses import PolicyLoss, Settings, Steps, advantages, weighted
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import AnyArray, Number
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy
from ding_lite.rl.policies.actor_critic_config import ActorCriticConfig
from ding_lite.rl.policies.rollout_updates import (
    Descend,
    Forward,
    ForwardResult,
    Updates,
    recurrence_of,
    unseen_values,
    with_gae,
)
from ding_lite.rl.replay.rollouts import Minibatch, merged
from ding_lite.settings.config import suggests
from ding_lite.settings.rules import SHARE, setting


@suggests
@dataclass(frozen=True, kw_only=True)
class A2CConfig(ActorCriticConfig):
    """Settings of A2C. The defaults suit small tasks such as CartPole."""

    lr: float = 3e-3
    """The learning rate of Adam, with an eps of 1e-5. Higher learns faster; too high undoes what
    was learned.
    3e-4 to 5e-3 are usual, and larger networks need lower ones."""
    gae_lambda: float = setting(0.95, SHARE)
    """Lambda of GAE: 1 uses all rewards of the rollout, as the paper does; lower has less variance
    and more bias. 0.9 to 1 are usual."""
    normalize_advantage: bool = False
    """Normalise the advantages of an update to mean 0 and standard deviation 1. Short runs learn
    sooner with it, and the scale of rewards does not matter. The paper does not: a solved task has
    small advantages, which normalising enlarges until they undo what was learned."""


class A2C(ActorCriticPolicy[A2CConfig]):
    """On-policy actor-critic for discrete or continuous actions; one update per rollout.

    `learn` does one step of Adam along the mean gradient of all env steps. The loss is
    -mean(log pi(a|x) A) + value_coef mean((V(x) - target)^2) - entropy_coef H. The metrics are
    `loss`, its parts `policy_loss`, `value_loss` and `entropy`, and `grad_norm`.

    Example:
        >>> import numpy as np
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("CartPole-v1", 2)
        >>> action, log_prob = A2C(envs.spec).explore(envs.obs)
        >>> action.shape, np.exp(log_prob).round(1).tolist()
        ((2,), [0.5, 0.5])
    """

    _config_type = A2CConfig

    def _learned(self, rollout: Rollout) -> Updates[dict[str, Number]]:
        steps, seen = yield from self._rows(rollout)
        values: dict[str, Number] = yield Descend(steps, seen)
        return values

    def _rows(self, rollout: Rollout) -> Updates[tuple[Minibatch, ForwardResult | None]]:
        seen = yield Forward(merged(rollout.obs), recurrence_of(rollout))
        value_TN = seen.value_B.reshape(rollout.reward.shape)
        unseen_M = yield from unseen_values(rollout, seen)
        gae_lambda = self.config.gae_lambda
        steps = yield from with_gae(rollout, self.gamma, gae_lambda, value_TN, unseen_M)
        return steps, seen

    @staticmethod
    def policy_loss(
        rows: Rows, settings: Settings, steps: Steps, log_prob_GB: AnyArray
    ) -> PolicyLoss:
        return weighted(rows, log_prob_GB, advantages(rows, settings, steps))
