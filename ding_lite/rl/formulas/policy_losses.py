"""The loss of A2C, PPO and IMPALA, from a network's outputs to the gradient of these outputs.

Arrays or tensors with a leading axis of G members, which learn as one computation: the policies of
a population, or one policy alone. Each has settings of its own. Shape letters: B env steps each, M
those of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from ding_lite.rl.formulas.advantages import normalized
from ding_lite.rl.formulas.distributions import Distribution
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import AnyArray, namespace, on


class Settings:
    """The settings of members as columns, [G, 1]; infinity for None."""

    def __init__(self, configs: Sequence[Any], device: torch.device) -> None:
        self._configs, self._device = configs, device
        self._columns: dict[str, AnyArray] = {}

    def __getitem__(self, name: str) -> AnyArray:
        if name not in self._columns:
            given = ([math.inf if v is None else v] for v in self._of_each(name))
            self._columns[name] = on(self._device, np.array([*given], dtype=np.float32))
        return self._columns[name]

    def any(self, name: str) -> bool:
        """Return whether a setting is given, and not 0, for at least one."""
        return any(self._of_each(name))

    def where(self, name: str, with_it: Callable[[], AnyArray], without_GB: AnyArray) -> AnyArray:
        """Return computed values for members with a setting on, and given ones for the others."""
        each = self._of_each(name)
        if not any(each):
            return without_GB
        found_GB = with_it()
        if all(each):
            return found_GB
        return namespace(found_GB).where(self[name] > 0.0, found_GB, without_GB)

    def _of_each(self, name: str) -> list[Any]:
        return [getattr(config, name) for config in self._configs]


@dataclass(frozen=True, slots=True)
class Steps:
    """Env steps as these losses read them."""

    action: AnyArray
    log_prob_B: AnyArray
    """The log-probability of the action under the weights that collected it."""
    advantage_B: AnyArray
    target_B: AnyArray
    """The return to regress the value on."""

    def __len__(self) -> int:
        return len(self.target_B)


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The part of a loss that is of the log-probabilities, and its gradient by these."""

    loss_G: AnyArray
    grad_GB: AnyArray
    more: dict[str, AnyArray] = field(default_factory=dict)
    """Further metrics, [G]."""


PolicyLossOf: TypeAlias = Callable[[Rows, Settings, Steps, AnyArray], PolicyLoss]
"""Computes it, given the log-probabilities of the actions, [G, B]."""


def advantages(rows: Rows, settings: Settings, steps: Steps) -> AnyArray:
    """Return the advantages, [G, B], normalised for members with `normalize_advantage`."""
    plain_GB = rows.fold(steps.advantage_B)
    return settings.where("normalize_advantage", lambda: normalized(rows, plain_GB), plain_GB)


def weighted(rows: Rows, log_prob_GB: AnyArray, advantage_GB: AnyArray) -> PolicyLoss:
    """Compute -mean(A log pi(a|x)); the weights A are constants (Williams 1992)."""
    return PolicyLoss(-rows.mean(advantage_GB * log_prob_GB), -rows.per_size(advantage_GB))


def actor_critic_loss(
    policy_loss: PolicyLossOf,
    rows: Rows,
    settings: Settings,
    distribution: Distribution,
    steps: Steps,
    outputs_MD: AnyArray,
    value_M: AnyArray,
) -> tuple[dict[str, AnyArray], AnyArray, AnyArray]:
    """Add the losses of the critic and the entropy to that of a policy.

    Returns:
        `loss`, its parts and further metrics, [G] each, and the gradients of outputs and values.
    """
    likely = distribution.likelihood(outputs_MD, steps.action)
    policy = policy_loss(rows, settings, steps, rows.fold(likely.log_prob_B))
    error_GB = rows.fold(value_M - steps.target_B)
    value_loss_G = rows.mean(error_GB * error_GB)
    entropy_G = rows.mean(rows.fold(likely.entropy_B))
    value_coef_G1, entropy_coef_G1 = settings["value_coef"], settings["entropy_coef"]
    more_G = value_coef_G1[:, 0] * value_loss_G - entropy_coef_G1[:, 0] * entropy_G
    values = {
        "loss": policy.loss_G + more_G,
        "policy_loss": policy.loss_G,
        "value_loss": value_loss_G,
        "entropy": entropy_G,
        **policy.more,
    }
    entropy_grad_M1 = None
    if settings.any("entropy_coef"):
        ones_GB = namespace(error_GB).ones_like(error_GB)
        entropy_grad_M1 = rows.per_size(-entropy_coef_G1 * ones_GB).reshape(-1, 1)
    outputs_grad_MD = distribution.backward(likely, policy.grad_GB.reshape(-1), entropy_grad_M1)
    value_grad_M = rows.per_size(2.0 * value_coef_G1 * error_GB).reshape(-1)
    return values, outputs_grad_MD, value_grad_M
