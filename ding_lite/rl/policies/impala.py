"""IMPALA: learn from rollouts of older weights (Espeholt et al. 2018, arXiv:1802.01561).

V-trace corrects for the difference, so that collectors need not wait for the learner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ding_lite.rl.batch import FloatArray, Rollout
from ding_lite.rl.formulas.returns import vtrace
from ding_lite.rl.policies.actor_critic import (
    ActorCriticConfig,
    ActorCriticPolicy,
)
from ding_lite.rl.policies.minibatches import Minibatch
from ding_lite.rl.replay.rollouts import join_rollouts, merged, next_values, unseen_obs
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import at_least, check_all, positive, suggests, whole

_Forward: TypeAlias = tuple[FloatArray, FloatArray, Any]
"""The actor's outputs, [B, D], values, [B], and the activations that the backward needs."""
_TINY = np.float32(np.finfo(np.float32).tiny)
_HIGHEST_LOG = 80.0
"""Its exponential is about the highest number that float32 holds."""


@suggests
@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(ActorCriticConfig):
    """Settings of IMPALA. The defaults suit small tasks such as CartPole."""

    lr: float = 3e-3
    """Adam's step size. Higher learns faster, too high forgets; 3e-4 to 5e-3 are usual, and the
    larger the network, the lower."""
    rho_clip: float = 1.0
    """The upper bound of the importance ratio of an action in its own advantage and value error.
    Lower has less variance and more bias; 1 is usual, infinity switches it off."""
    c_clip: float = 1.0
    """The upper bound of the ratios that carry a correction back in time. Lower carries it less
    far; 1 is usual, and never above `rho_clip`."""
    epochs: int = 1
    """Passes over each batch of rollouts; V-trace is computed anew before each. More learns more
    from each env step and takes longer; 1 to 20."""
    batch_size: int | None = None
    """Env steps of one update. Fewer are more updates an epoch; None, as in the paper, takes the
    whole batch."""
    clip: float | None = None
    """The bound on the relative change of an action's probability since it was collected; beyond
    it the gradient is 0. It keeps many updates of the same env steps stable; 0.1 to 0.3 are usual,
    and None, as in the paper, bounds nothing but the ratios."""
    normalize_advantage: bool = True
    """Normalise the advantages of an update to mean 0 and standard deviation 1, each weighted by
    its ratio rho. The paper does not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_all(
            positive(rho_clip=self.rho_clip, c_clip=self.c_clip),
            at_least(self.c_clip, rho_clip=self.rho_clip),
            whole(1, epochs=self.epochs),
            [] if self.batch_size is None else whole(1, batch_size=self.batch_size),
            [] if self.clip is None else positive(clip=self.clip),
        )


class IMPALA(ActorCriticPolicy):
    """Off-policy actor-critic for discrete or continuous actions, corrected by V-trace.

    Args:
        spec: The spec of the environments, `envs.spec`.
        config: The settings.
        device: The device of the network, as PyTorch names it.

    Raises:
        ConfigError: If there is no such device, or a setting does not fit the environment.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("CartPole-v1", 2)
        >>> IMPALA(envs.spec, IMPALAConfig(rho_clip=1.0)).values(envs.obs).shape
        (2,)
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: IMPALAConfig | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        """Initialise the weights."""
        self.config = config or IMPALAConfig()
        super().__init__(spec, self.config, device=device)

    def learn(self, rollouts: Sequence[Rollout], /) -> dict[str, float]:
        """Go `epochs` times through all env steps, with a step of Adam for each minibatch of them.

        Each epoch begins with V-trace. With its targets v, the cut ratio rho of an action and its
        advantage A = r + gamma v' - V(x), the loss of a minibatch is
        -mean(rho log pi(a|x) A) + value_coef mean((V(x) - v)^2) - entropy_coef H; rho is a
        constant in it. Where an action has reached the bound of `clip`, its A is 0.

        Args:
            rollouts: All of the same length; of any collectors, and any version of the weights.

        Returns:
            Of the last update `loss`, its parts `policy_loss`, `value_loss` and `entropy`,
            `rho` (the mean cut importance ratio; 1 where the weights are those that acted),
            `clip_fraction` where there is a `clip` (the share of actions that it holds) and
            `grad_norm`.

        Raises:
            ShapeError: If they are not of the environment it was made for.
            NonFiniteError: If a loss is NaN or infinite. That step is not taken then.
        """
        rollout = join_rollouts(rollouts, self.spec)
        size = self.config.batch_size or rollout.reward.size
        metrics: dict[str, float] = {}
        for _ in range(self.config.epochs):
            rows, forward = self._judge(rollout)
            if rollout.reward.size <= size:
                metrics = self._step(rows, forward)
                continue
            order = self._rng.permutation(rollout.reward.size)
            # As many as fit, of even size: a few left over would pull as much as all the others.
            for index_B in np.array_split(order, round(len(order) / size)):
                part = rows.take(index_B)
                metrics = self._step(part, self._net.forward(part.obs))
        self._has_seen(rollout)
        return metrics

    def gradients(self, unrolls: Sequence[Rollout]) -> tuple[Tensor, dict[str, float]]:
        """Compute the gradient of all env steps at once, [P], and its metrics; change nothing."""
        metrics = self._compute(*self._judge(join_rollouts(unrolls, self.spec)))
        return self._net.grads.flat.clone(), metrics

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite raises instead
    def _judge(self, rollout: Rollout) -> tuple[Minibatch, _Forward]:
        """Compute advantages and targets; return the network's outputs, too."""
        config, shape_TN = self.config, rollout.reward.shape
        obs, action = self._inputs(merged(rollout.obs)), merged(rollout.action)
        forward = self._net.forward(obs)
        outputs_BD, value_B, _ = forward
        log_prob_B = self._distribution.judge(outputs_BD, action).log_prob_B
        value_TN = value_B.reshape(shape_TN)
        log_rho_TN = log_prob_B.reshape(shape_TN) - rollout.log_prob
        found = vtrace(
            log_rho_TN,
            np.float32(config.gamma) * ~rollout.terminated,
            rollout.reward,
            value_TN,
            next_values(rollout, value_TN, self.values(unseen_obs(rollout))),
            rollout.truncated,
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
        )
        rho_B = self._cut_ratio(merged(log_rho_TN))
        advantage_B: FloatArray = merged(found.advantage_TB)
        advantage_B /= np.maximum(rho_B, _TINY)
        target_B = merged(found.target_TB)
        return Minibatch(obs, action, merged(rollout.log_prob), advantage_B, target_B), forward

    def _step(self, rows: Minibatch, forward: _Forward) -> dict[str, float]:
        metrics = self._compute(rows, forward)
        metrics["grad_norm"] = self._improve()
        return metrics

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite raises instead
    def _compute(self, rows: Minibatch, forward: _Forward) -> dict[str, float]:
        """Write the gradient of the loss; return the metrics."""
        config, clip = self.config, self.config.clip
        outputs_BD, value_B, saved = forward
        likely = self._distribution.judge(outputs_BD, rows.action)
        log_rho_B = likely.log_prob_B - rows.log_prob_B
        rho_B = self._cut_ratio(log_rho_B)
        advantage_B = rho_B * rows.advantage_B
        if config.normalize_advantage:
            advantage_B = normalized_by_rho(advantage_B, rho_B)
        more = {"rho": float(rho_B.mean())}
        if clip is not None:
            ratio_B = np.exp(log_rho_B)
            has_gone_B = np.where(advantage_B > 0.0, ratio_B > 1.0 + clip, ratio_B < 1.0 - clip)
            advantage_B[has_gone_B] = 0.0
            more["clip_fraction"] = float(has_gone_B.mean())

        grad_B = advantage_B * np.float32(-1.0 / len(advantage_B))
        loss = float(grad_B @ likely.log_prob_B)
        metrics = self._write_gradient(saved, likely, loss, grad_B, value_B - rows.target_B)
        return metrics | more

    def _cut_ratio(self, log_rho_B: FloatArray) -> FloatArray:
        limit = min(math.log(self.config.rho_clip), _HIGHEST_LOG)
        ratio_B: FloatArray = np.exp(np.minimum(log_rho_B, np.float32(limit)))
        return ratio_B

    def _twin(self) -> Self:
        return type(self)(self.spec, self.config, device=self.device)


def normalized_by_rho(advantage_B: FloatArray, rho_B: FloatArray) -> FloatArray:
    """Normalise advantages that are multiplied by their ratios to mean 0 and deviation 1.

    Mean and deviation are those of the plain advantages, weighted by the ratios: so actions that
    the policy would not take any more keep a gradient of 0. With the plain mean subtracted they
    would count as good ones whenever the others are bad.

    Args:
        advantage_B: rho times the advantage of each env step.
        rho_B: The ratios, at least 0.

    Example:
        >>> rho_B = np.array([1.0, 1.0, 0.0], dtype=np.float32)
        >>> normed_B = normalized_by_rho(rho_B * np.array([1.0, 3.0, 9.0], np.float32), rho_B)
        >>> normed_B.round().astype(int).tolist()
        [-1, 1, 0]
    """
    total = max(float(rho_B.sum()), 1e-8)
    mean = np.float32(float(advantage_B.sum()) / total)
    plain_B: FloatArray = np.divide(advantage_B, np.maximum(rho_B, _TINY), dtype=np.float32)
    error_B: FloatArray = np.subtract(plain_B, mean, dtype=np.float32)
    spread = math.sqrt(float(rho_B @ (error_B * error_B)) / total)
    weighted_B: FloatArray = rho_B * error_B
    weighted_B /= np.float32(spread + 1e-8)
    return weighted_B
