"""PPO: several updates from each rollout, each bounded by a clipped probability ratio.

Schulman et al. 2017 (arXiv:1707.06347), with the advantages of Schulman et al. 2016
(arXiv:1506.02438).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ding_lite.errors import ConfigError
from ding_lite.rl.batch import Rollout
from ding_lite.rl.formulas.advantages import ratios
from ding_lite.rl.formulas.policy_losses import PolicyLoss, Settings, Steps, advantages
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import AnyArray, Number, floats, namespace
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy
from ding_lite.rl.policies.actor_critic_config import ActorCriticConfig
from ding_lite.rl.policies.rollout_updates import (
    Descend,
    ForwardResult,
    Updates,
    values_of,
    with_gae,
)
from ding_lite.rl.replay.rollouts import Minibatch
from ding_lite.rl.weights.compiled import CapturedUpdate
from ding_lite.settings.config import suggests
from ding_lite.settings.rules import COUNT, SHARE, positive, setting


@suggests
@dataclass(frozen=True, kw_only=True)
class PPOConfig(ActorCriticConfig):
    """Settings of PPO. The defaults suit small tasks such as CartPole."""

    lr: float = 2e-3
    """The learning rate of Adam, with an eps of 1e-5. Higher learns faster; too high undoes what
    was learned.
    1e-4 to 2e-3 are usual, and larger networks need lower ones."""
    gae_lambda: float = setting(0.95, SHARE)
    """Lambda of GAE: 0 relies on the values, 1 on the rewards; 0.9 to 0.97 are usual."""
    clip: float = setting(0.2, positive)
    """The bound on the relative change of an action's probability in all updates of a rollout;
    beyond it the gradient is 0. 0.1 to 0.3 are usual."""
    epochs: int = setting(4, COUNT)
    """Passes over each rollout. More passes learn more from each env step and take longer; 3 to 20
    are usual."""
    batch_size: int = setting(64, COUNT)
    """About the env steps of one update, as all are divided evenly. Fewer give more updates per
    epoch; 64 to 4,096 are usual. With `memory` an update has whole sequences, of at least one
    environment."""
    normalize_advantage: bool = True
    """Normalise the advantages of an update to mean 0 and standard deviation 1, so that the scale
    of rewards does not matter."""
    target_kl: float | None = setting(None, positive)
    """Skip the rest of a rollout's updates once the policy's divergence from the policy that
    collected it exceeds this, in nats; 0.01 to 0.05 are usual. Of several learners the mean of
    their divergences counts. None does all updates."""


class PPO(ActorCriticPolicy[PPOConfig]):
    """On-policy actor-critic for discrete or continuous actions; several updates per rollout.

    `learn` does `epochs` passes over all env steps, with a step of Adam for each minibatch. With
    the ratio r of an action's present probability to that at its collection, the loss is
    -mean(min(r A, clip(r, 1 - clip, 1 + clip) A)) + value_coef mean((V(x) - target)^2)
    - entropy_coef H. Advantages and targets are computed once, before the first step.

    The metrics, of the last minibatch, are `loss`, its parts `policy_loss`, `value_loss` and
    `entropy`, `approx_kl` (the divergence from the policy that collected, in nats), `clip_fraction`
    (the share of actions beyond the clip) and `grad_norm`.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("Pendulum-v1", 2)
        >>> action, log_prob = PPO(envs.spec).explore(envs.obs)
        >>> action.shape, log_prob.shape
        ((2, 1), (2,))
    """

    _config_type = PPOConfig

    def _learned(self, rollout: Rollout) -> Updates[dict[str, Number]]:
        steps, _ = yield from self._rows(rollout)
        values: dict[str, Number] = {}
        size = self.config.batch_size
        parts = self._agreed(steps.num_parts(size))
        for _ in range(self.config.epochs):
            for part in steps.split(size, self._rng, parts=parts):
                values = yield Descend(part)
                if "grad_norm" not in values:
                    return values
        return values

    def _rows(self, rollout: Rollout) -> Updates[tuple[Minibatch, ForwardResult | None]]:
        values = yield from values_of(rollout)
        steps = yield from with_gae(rollout, self.gamma, self.config.gae_lambda, *values)
        return steps, None

    @staticmethod
    def policy_loss(
        rows: Rows, settings: Settings, steps: Steps, log_prob_GB: AnyArray
    ) -> PolicyLoss:
        log_ratio_GB, clip_G1 = log_prob_GB - rows.fold(steps.log_prob_B), settings["clip"]
        ratio_GB, advantage_GB = ratios(log_ratio_GB), advantages(rows, settings, steps)
        clipped_GB = ratio_GB.clip(1.0 - clip_G1, 1.0 + clip_G1)
        gain_GB, clipped_gain_GB = ratio_GB * advantage_GB, clipped_GB * advantage_GB
        is_pulled_GB = gain_GB <= clipped_gain_GB
        more = {
            "approx_kl": rows.mean(ratio_GB - 1.0 - log_ratio_GB),
            "clip_fraction": rows.mean(floats(clipped_GB != ratio_GB)),
        }
        loss_G = -rows.mean(namespace(gain_GB).minimum(gain_GB, clipped_gain_GB))
        return PolicyLoss(loss_G, -rows.per_size(gain_GB * is_pulled_GB), more)

    def _stops(self, values: Mapping[str, Number]) -> bool:
        limit = self.config.target_kl
        if limit is None:
            return False
        return self._mean_of_learners(float(values["approx_kl"])) > limit

    def _captured(self) -> CapturedUpdate:
        if self.config.target_kl is not None:
            raise ConfigError(
                '`compile="graph"` captures updates, and with `target_kl` the host looks at each '
                "of them before its step. Leave one of the two out."
            )
        return super()._captured()
