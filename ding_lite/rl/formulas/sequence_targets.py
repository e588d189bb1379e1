"""Value targets within sequences of env steps, and a scale of values for large returns."""

from __future__ import annotations

import torch
from torch import Tensor

RESCALE_EPSILON = 1e-3
"""The slope of `rescaled` for large values."""


def sequence_targets(
    reward_BT: Tensor,
    terminated_BT: Tensor,
    mask_BT: Tensor,
    value_BT1: Tensor,
    *,
    gamma: float,
    n_step: int,
) -> Tensor:
    """Compute n-step targets within sequences, [B, T].

    The target of step t is r_t + ... + gamma^(m-1) r_(t+m-1) + gamma^m value_(t+m), without the
    last term if the episode terminated. m is n, or less at the end of the sequence or the episode
    (Sutton and Barto 2018, section 7.1).

    `value_BT1` has the value of each observation and of the last one. Where `mask_BT` is false no
    step exists, and the target is arbitrary, but finite.
    """
    size, num_steps = reward_BT.shape
    time_T = torch.arange(num_steps, device=reward_BT.device)
    length_B1 = mask_BT.sum(1, keepdim=True)
    end_BT = torch.minimum(time_T + n_step, length_B1).clamp(min=1)
    goal_BT = torch.zeros_like(reward_BT)
    for ahead in range(n_step):
        is_part_BT = time_T + ahead < length_B1
        index_T = (time_T + ahead).clamp(max=num_steps - 1)
        goal_BT = goal_BT + gamma**ahead * reward_BT[:, index_T] * is_part_BT
    has_ended_BT = terminated_BT.gather(1, (end_BT - 1).expand(size, -1))
    # Behind the sequence the exponent would be negative, and a power of a small gamma infinite.
    bootstrap_BT = value_BT1.gather(1, end_BT) * gamma ** (end_BT - time_T).clamp(min=0)
    return goal_BT + bootstrap_BT * ~has_ended_BT


def rescaled(value: Tensor) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + e x (Pohlen et al. 2018, arXiv:1805.11593)."""
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + RESCALE_EPSILON * value


def unscaled(value: Tensor) -> Tensor:
    e = RESCALE_EPSILON
    root = (1.0 + 4.0 * e * (value.abs() + 1.0 + e)).sqrt()
    return value.sign() * (((root - 1.0) / (2.0 * e)).square() - 1.0)
