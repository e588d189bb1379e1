"""GAE and V-trace of tensors on their own device, such as a GPU.

A loop over time is a call to the GPU for each step. These forms double how far each sum reaches,
so that T steps take log2(T) calls, each of which does more work than a step of the loop would.
On the CPU that work counts, and `gae` and `vtrace` are faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ding_lite.rl.formulas.returns import check_same_shape
from ding_lite.settings import at_least, check_all, inside, positive

_HIGHEST_LOG = 80.0
"""Its exponential is about the highest number that float32 holds."""


@dataclass(frozen=True, slots=True)
class TensorAdvantages:
    """Advantages and value targets of T steps in B environments, as tensors."""

    advantage_TB: Tensor
    """The advantage of each action, for the policy gradient."""
    target_TB: Tensor
    """The expected return from each observation; the regression target of the value."""


@torch.no_grad()
def gae_on_device(
    discount_TB: Tensor,
    reward_TB: Tensor,
    value_TB: Tensor,
    next_value_TB: Tensor,
    truncated_TB: Tensor,
    *,
    gae_lambda: float,
) -> TensorAdvantages:
    """Compute generalised advantage estimates, as `gae` does, on the tensors' device.

    Shapes: T steps, B environments; float32, and bool for `truncated_TB`. All on one device.

    Args:
        discount_TB: gamma, and 0 where the step terminated. Not 0 where it was truncated.
        reward_TB: The rewards.
        value_TB: The value of each observation; no gradient flows through it.
        next_value_TB: The value of the observation that the step led to; at the end of an episode
            of its last observation.
        truncated_TB: Whether the episode was cut off there.
        gae_lambda: 0 relies on the values, 1 on the rewards; 0.9 to 0.97 are usual.

    Raises:
        ShapeError: If the inputs do not agree on T and B.
        ConfigError: If `gae_lambda` is not in 0 to 1.

    Example:
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> gae_on_device(0.5 * one, one, 0 * one, 0 * one, no, gae_lambda=1.0).advantage_TB.T
        tensor([[1.5000, 1.0000]])
    """
    check_same_shape(discount_TB, reward_TB, value_TB, next_value_TB, truncated_TB)
    check_all(inside(0.0, 1.0, gae_lambda=gae_lambda))
    error_TB = reward_TB + discount_TB * next_value_TB - value_TB
    decay_TB = (gae_lambda * discount_TB).masked_fill_(truncated_TB, 0.0)
    advantage_TB = _sum_backwards(error_TB, decay_TB)
    return TensorAdvantages(advantage_TB, advantage_TB + value_TB)


@torch.no_grad()
def vtrace_on_device(
    log_rho_TB: Tensor,
    discount_TB: Tensor,
    reward_TB: Tensor,
    value_TB: Tensor,
    next_value_TB: Tensor,
    truncated_TB: Tensor,
    *,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> TensorAdvantages:
    """Compute V-trace targets, as `vtrace` does, on the tensors' device.

    Shapes: T steps, B environments; float32, and bool for `truncated_TB`. All on one device.

    Args:
        log_rho_TB: log pi(a|x) - log mu(a|x), learner minus collector.
        discount_TB: gamma, and 0 where the step terminated. Not 0 where it was truncated.
        reward_TB: The rewards.
        value_TB: The learner's value of each observation; no gradient flows through it.
        next_value_TB: The value of the observation that the step led to; at the end of an episode
            of its last observation.
        truncated_TB: Whether the episode was cut off there.
        rho_clip: Lower means less variance, more bias. Usually 1; infinity switches it off.
        c_clip: Lower forgets sooner. Usually 1; never above `rho_clip`.

    Raises:
        ShapeError: If the inputs do not agree on T and B.
        ConfigError: If a clip is not above 0, or `c_clip` is above `rho_clip`.

    Example:
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> vtrace_on_device(0 * one, 0.5 * one, one, 0 * one, 0 * one, no).target_TB.T
        tensor([[1.5000, 1.0000]])
    """
    check_same_shape(log_rho_TB, discount_TB, reward_TB, value_TB, next_value_TB, truncated_TB)
    check_all(positive(rho_clip=rho_clip, c_clip=c_clip), at_least(c_clip, rho_clip=rho_clip))
    ratio_TB = log_rho_TB.clamp(max=_HIGHEST_LOG).exp_()
    rho_TB = ratio_TB.clamp(max=rho_clip)
    decay_TB = ratio_TB.clamp_(max=c_clip).mul_(discount_TB).masked_fill_(truncated_TB, 0.0)
    error_TB = rho_TB * (reward_TB + discount_TB * next_value_TB - value_TB)
    correction_TB = _sum_backwards(error_TB, decay_TB)

    # The next value is corrected likewise where the next step is of the same episode.
    next_target_TB = next_value_TB.clone()
    next_target_TB[:-1] += correction_TB[1:].masked_fill(truncated_TB[:-1], 0.0)
    advantage_TB = rho_TB * (reward_TB + discount_TB * next_target_TB - value_TB)
    return TensorAdvantages(advantage_TB, correction_TB + value_TB)


def _sum_backwards(term_TB: Tensor, decay_TB: Tensor) -> Tensor:
    """Turn terms into x with x_t = term_t + decay_t x_(t+1), which begins from 0 behind the last.

    Before each round a term is the sum of `reach` steps and a decay their product: the sum of
    twice as many is that sum and the decayed one behind it (Hillis and Steele 1986). Both are
    overwritten, and the terms returned.
    """
    for doubling in range(math.ceil(math.log2(max(1, len(term_TB))))):
        reach = 2**doubling
        later_TB, decay_before_TB = term_TB[reach:], decay_TB[:-reach]
        term_TB[:-reach] += decay_before_TB * later_TB
        decay_TB[:-reach] = decay_before_TB * decay_TB[reach:]
    return term_TB
