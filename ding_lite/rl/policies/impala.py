"""IMPALA: learn from unrolls that older weights have made (Espeholt et al. 2018, arXiv:1802.01561).

V-trace corrects for the difference, so that collectors need not wait for the learner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ding_lite.rl.batch import FloatArray, Unroll
from ding_lite.rl.policies.actor_critic import (
    ActorCriticConfig,
    ActorCriticPolicy,
)
from ding_lite.rl.returns import vtrace
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.unrolls import join_unrolls, merged, next_values, unseen_obs
from ding_lite.settings import at_least, check_all, positive, suggests, whole


@suggests
@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(ActorCriticConfig):
    """The settings of an IMPALA. The defaults suit small tasks such as CartPole."""

    lr: float = 3e-3
    """Adam's step size. Higher learns faster, too high forgets; 3e-4 to 5e-3 are usual, and the
    larger the network, the lower."""
    rho_clip: float = 1.0
    """Where the importance ratio of an action is cut for its own advantage and value error. Lower
    means less variance and more bias; 1 is usual, infinity switches it off."""
    c_clip: float = 1.0
    """Where it is cut for what a correction carries back in time. Lower forgets sooner; 1 is
    usual, and never above `rho_clip`."""
    epochs: int = 1
    """How many updates each batch of unrolls is learned from; V-trace corrects for what the ones
    before have changed. More learns more from each env step and takes longer; 1 to 4."""
    normalize_advantage: bool = True
    """Bring the advantages of an update to mean 0 and spread 1, each counted by its ratio rho, so
    that the size of rewards does not matter. The paper does not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_all(
            positive(rho_clip=self.rho_clip, c_clip=self.c_clip),
            at_least(self.c_clip, rho_clip=self.rho_clip),
            whole(1, epochs=self.epochs),
        )


class IMPALA(ActorCriticPolicy):
    """A policy for choices or numbers that learns from unrolls of older weights, too.

    Args:
        spec: What it acts on, `envs.spec`.
        config: The settings.
        device: Where the network runs, as PyTorch names it.

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
        """Draw the first weights."""
        self.config = config or IMPALAConfig()
        super().__init__(spec, self.config, device=device)

    def learn(self, unrolls: Sequence[Unroll], /) -> dict[str, float]:
        """Do `epochs` updates: each one step of Adam along the mean gradient of all env steps.

        With V-trace's targets v, its cut ratio rho and advantages A = rho (r + gamma v' - V(x)),
        the loss is -mean(log pi(a|x) A) + value_coef mean((V(x) - v)^2) - entropy_coef H.

        Args:
            unrolls: All of the same length; of any collectors, and any version of the weights.

        Returns:
            Of the last update `loss`, its parts `policy_loss`, `value_loss` and `entropy`,
            `rho` (the mean cut importance ratio; 1 where the weights are those that acted) and
            `grad_norm`.

        Raises:
            ShapeError: If they are not of the environment it was made for.
            NonFiniteError: If a loss is NaN or infinite. That step is not taken then.
        """
        unroll = join_unrolls(unrolls, self.spec)
        metrics: dict[str, float] = {}
        for _ in range(self.config.epochs):
            metrics = self._compute(unroll)
            metrics["grad_norm"] = self._improve()
        self._has_seen(unroll)
        return metrics

    def gradients(self, unrolls: Sequence[Unroll]) -> tuple[Tensor, dict[str, float]]:
        """Compute the gradient of one update, [P], and its metrics, and change nothing."""
        metrics = self._compute(join_unrolls(unrolls, self.spec))
        return self._net.grads.flat.clone(), metrics

    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is raised, not warned of
    def _compute(self, unroll: Unroll) -> dict[str, float]:
        """Write the gradient of the loss."""
        config, shape_TN = self.config, unroll.reward.shape
        outputs_BD, value_B, saved = self._net.forward(self._inputs(merged(unroll.obs)))
        likely = self._distribution.judge(outputs_BD, merged(unroll.action))
        log_rho_TN = likely.log_prob_B.reshape(shape_TN) - unroll.log_prob
        value_TN = value_B.reshape(shape_TN)
        found = vtrace(
            log_rho_TN,
            np.float32(config.gamma) * ~unroll.terminated,
            unroll.reward,
            value_TN,
            next_values(unroll, value_TN, self.values(unseen_obs(unroll))),
            unroll.truncated,
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
        )
        advantage_B = merged(found.advantage_TB)
        log_clip = np.float32(np.log(config.rho_clip))
        rho_B = merged(np.exp(np.minimum(log_rho_TN, log_clip)))
        if config.normalize_advantage:
            advantage_B = normalized_by_rho(advantage_B, rho_B)

        grad_B = advantage_B * np.float32(-1.0 / len(advantage_B))
        loss = float(grad_B @ likely.log_prob_B)
        error_B = value_B - merged(found.target_TB)
        metrics = self._write_gradient(saved, likely, loss, grad_B, error_B)
        metrics["rho"] = float(rho_B.mean())
        return metrics

    def _twin(self) -> Self:
        return type(self)(self.spec, self.config, device=self.device)


def normalized_by_rho(advantage_B: FloatArray, rho_B: FloatArray) -> FloatArray:
    """Bring advantages that are multiplied by their ratios to mean 0 and spread 1.

    The mean and the spread are those of what the ratios multiply, each counted by its ratio: so
    actions that the policy would not take any more still teach nothing. Were the plain mean
    taken away, they would be taken for good ones whenever the others are bad.

    Args:
        advantage_B: rho times the advantage of each env step.
        rho_B: The ratios, at least 0.

    Example:
        >>> rho_B = np.array([1.0, 1.0, 0.0], dtype=np.float32)
        >>> normed_B = normalized_by_rho(rho_B * np.array([1.0, 3.0, 9.0], np.float32), rho_B)
        >>> normed_B.round().astype(int).tolist()
        [-1, 1, 0]
    """
    tiny = np.float32(np.finfo(np.float32).tiny)
    total = max(float(rho_B.sum()), 1e-8)
    mean = np.float32(float(advantage_B.sum()) / total)
    plain_B: FloatArray = np.divide(advantage_B, np.maximum(rho_B, tiny), dtype=np.float32)
    error_B: FloatArray = np.subtract(plain_B, mean, dtype=np.float32)
    spread = math.sqrt(float(rho_B @ (error_B * error_B)) / total)
    weighted_B: FloatArray = rho_B * error_B
    weighted_B /= np.float32(spread + 1e-8)
    return weighted_B
