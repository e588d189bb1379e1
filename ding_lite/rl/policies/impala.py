"""IMPALA: learn from rollouts of older weights (Espeholt et al. 2018, arXiv:1802.01561).

V-trace corrects for the difference between the weights, so that collectors need not wait for the
learner.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ding_lite.rl.batch import Rollout
from ding_lite.rl.formulas.advantages import normalized_by_rho, ratios, unweighted, vtrace
from ding_lite.rl.formulas.policy_losses import PolicyLoss, Settings, Steps, weighted
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import AnyArray, Number, floats, namespace
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy
from ding_lite.rl.policies.actor_critic_config import ActorCriticConfig
from ding_lite.rl.policies.rollout_updates import (
    Descend,
    Forward,
    ForwardResult,
    Updates,
    estimate,
    merged_steps,
    recurrence_of,
    unseen_values,
)
from ding_lite.rl.replay.rollouts import Minibatch, merged
from ding_lite.settings.config import suggests
from ding_lite.settings.rules import COUNT, at_least, check_all, positive, setting


@suggests
@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(ActorCriticConfig):
    """Settings of IMPALA. The defaults suit small tasks such as CartPole."""

    lr: float = 3e-3
    """The learning rate of Adam, with an eps of 1e-5. Higher learns faster; too high undoes what
    was learned.
    3e-4 to 5e-3 are usual, and larger networks need lower ones."""
    rho_clip: float = setting(1.0, positive)
    """The upper bound of an action's importance ratio in its own advantage and value error. Lower
    has less variance and more bias; 1 is usual, and infinity disables the bound."""
    c_clip: float = setting(1.0, positive)
    """The upper bound of the importance ratios that propagate corrections to earlier steps. Lower
    propagates them less far; 1 is usual, and it must not exceed `rho_clip`."""
    epochs: int = setting(1, COUNT)
    """Passes over each batch of rollouts; V-trace is computed anew before each. More passes learn
    more from each env step and take longer; 1 to 20 are usual."""
    batch_size: int | None = setting(None, COUNT)
    """About the env steps of one update, as all are divided evenly. Fewer give more updates per
    epoch; None, as in the paper, uses the whole batch. With `memory` an update has whole sequences,
    of at least one environment."""
    clip: float | None = setting(0.2, positive, optional=True)
    """The bound on the relative change of an action's probability since it was collected; beyond it
    the gradient is 0. It keeps updates on rollouts of earlier weights, and many updates on the same
    rollouts, stable; 0.1 to 0.3 are usual, and None, as in the paper, bounds only the ratios."""
    normalize_advantage: bool = False
    """Normalise the advantages of an update, each weighted by its ratio rho, to mean 0 and standard
    deviation 1. Short runs learn sooner with it, and the scale of rewards does not matter. The
    paper does not: a solved task has small advantages, which normalising enlarges until they undo
    what was learned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_all(at_least(self.c_clip, rho_clip=self.rho_clip))


class IMPALA(ActorCriticPolicy[IMPALAConfig]):
    """Off-policy actor-critic for discrete or continuous actions, corrected by V-trace.

    `learn` takes rollouts of any collectors and any version of the weights. It does `epochs` passes
    over all env steps, with a step of Adam for each minibatch. Each epoch begins with V-trace. With
    its targets v, an action's clipped ratio rho and its advantage A = r + gamma v' - V(x), the loss
    of a minibatch is -mean(rho log pi(a|x) A) + value_coef mean((V(x) - v)^2) - entropy_coef H, in
    which rho is a constant. Where an action has reached the bound of `clip`, its A is 0.

    The metrics, of the last update, are `loss`, its parts `policy_loss`, `value_loss` and
    `entropy`, `rho` (the mean clipped importance ratio; 1 if the policy that acted had the same
    weights), `clip_fraction` if `clip` is set (the share of actions at the bound) and `grad_norm`.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("CartPole-v1", 2)
        >>> IMPALA(envs.spec, IMPALAConfig(rho_clip=1.0)).values(envs.obs).shape
        (2,)
    """

    _config_type = IMPALAConfig

    def _learned(self, rollout: Rollout) -> Updates[dict[str, Number]]:
        values: dict[str, Number] = {}
        parts = 1
        for epoch in range(self.config.epochs):
            steps, seen = yield from self._rows(rollout)
            size = self.config.batch_size or len(steps)
            if self.config.batch_size and not epoch:
                parts = self._agreed(steps.num_parts(size))
            for part in steps.split(size, self._rng, parts=parts):
                values = yield Descend(part, seen if part is steps else None)
        if self.config.clip is None:
            values.pop("clip_fraction", None)  # other members of a population have a `clip`
        return values

    def _rows(self, rollout: Rollout) -> Updates[tuple[Minibatch, ForwardResult | None]]:
        config, shape_TN = self.config, rollout.reward.shape
        action = merged(rollout.action)
        seen = yield Forward(merged(rollout.obs), recurrence_of(rollout), action=action)
        value_TN = seen.value_B.reshape(shape_TN)
        log_rho_TN = seen.log_prob_B.reshape(shape_TN) - rollout.log_prob
        unseen_M = yield from unseen_values(rollout, seen)
        found = yield estimate(
            vtrace,
            rollout,
            self.gamma,
            value_TN,
            unseen_M,
            log_rho_TN,
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
        )
        rho_B = ratios(merged(log_rho_TN)).clip(None, config.rho_clip)
        advantage_B = unweighted(merged(found.advantage_TB), rho_B)
        return merged_steps(rollout, advantage_B, merged(found.target_TB)), seen

    @staticmethod
    def policy_loss(
        rows: Rows, settings: Settings, steps: Steps, log_prob_GB: AnyArray
    ) -> PolicyLoss:
        log_rho_GB = log_prob_GB - rows.fold(steps.log_prob_B)
        ratio_GB, xp = ratios(log_rho_GB), namespace(log_rho_GB)
        rho_GB = ratio_GB.clip(None, settings["rho_clip"])
        weighted_GB = rho_GB * rows.fold(steps.advantage_B)
        advantage_GB = settings.where(
            "normalize_advantage", lambda: normalized_by_rho(rows, weighted_GB, rho_GB), weighted_GB
        )
        more = {"rho": rows.mean(rho_GB)}
        if settings.any("clip"):
            low_G1, high_G1 = 1.0 - settings["clip"], 1.0 + settings["clip"]
            has_gone_GB = xp.where(advantage_GB > 0.0, ratio_GB > high_G1, ratio_GB < low_G1)
            advantage_GB = xp.where(has_gone_GB, 0.0, advantage_GB)
            more["clip_fraction"] = rows.mean(floats(has_gone_GB))
        return replace(weighted(rows, log_prob_GB, advantage_GB), more=more)
