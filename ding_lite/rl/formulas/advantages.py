"""Advantages of a rollout, on arrays or on tensors, and their normalisation.

Each estimate has a slow, simple reference in `tests/rl/reference.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import ConfigError, ShapeError, kind_of
from ding_lite.rl.batch import BOOLS, BoolArray, FloatArray
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import AnyArray, floats, namespace, zeros_like
from ding_lite.settings.rules import at_least, check_all, inside, positive

_HIGHEST_LOG = 80.0
"""The exponential of this is near the largest float32 number."""
_TINY = float(np.finfo(np.float32).tiny)


ArrayT = TypeVar("ArrayT", FloatArray, Tensor)
EstimateT = TypeVar("EstimateT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Advantages(Generic[ArrayT]):
    """Advantages and value targets of T steps in B environments, arrays or tensors."""

    advantage_TB: ArrayT
    """The advantage of each action, for the policy gradient."""
    target_TB: ArrayT
    """The expected return from each observation; the regression target of the value."""


def _without_gradient(estimate: EstimateT) -> EstimateT:
    without: Any = torch.no_grad()(estimate)

    @functools.wraps(estimate)
    def run(*given_TB: AnyArray, **more: Any) -> Any:  # noqa: ANN401 - of any estimate
        # Arrays have no gradient, and disabling gradients takes longer than a short sum.
        is_tensor = any(isinstance(each, Tensor) for each in (*given_TB[:1], *more.values()))
        return (without if is_tensor else estimate)(*given_TB, **more)

    return cast(EstimateT, run)


@_without_gradient
def gae(
    discount_TB: ArrayT,
    reward_TB: ArrayT,
    value_TB: ArrayT,
    next_value_TB: ArrayT,
    truncated_TB: BoolArray | Tensor,
    *,
    gae_lambda: float | FloatArray,
) -> Advantages[ArrayT]:
    """Compute generalised advantage estimates (Schulman et al. 2016, equation 16).

    Each is a weighted mean of the estimates by 1, 2, 3 ... rewards followed by a value. No sum
    crosses the end of an episode: after a terminated episode the value is 0, after a truncated one
    it is the value of its last observation.

    Shapes: T steps, B environments; float32. Arrays, or tensors of one device, on which it needs
    far fewer calls than a loop over time; no gradient flows through them.

    Args:
        discount_TB: gamma, and 0 where the step terminated. Not 0 where it was truncated.
        reward_TB: The rewards.
        value_TB: The value of each observation.
        next_value_TB: The value of the next observation; at the end of an episode, of its last
            observation.
        truncated_TB: Whether the episode was cut off with the step.
        gae_lambda: 0 relies on the values, 1 on the rewards; 0.9 to 0.97 are usual. One for all
            environments, or an array of one for each, [B].

    Raises:
        ShapeError: If the inputs do not agree on T and B.
        ConfigError: If `gae_lambda` is not in 0 to 1.

    Example:
        >>> one, no = np.ones((2, 1), dtype=np.float32), np.zeros((2, 1), dtype=np.bool_)
        >>> gae(0.5 * one, one, 0 * one, 0 * one, no, gae_lambda=1.0).advantage_TB.T.tolist()
        [[1.5, 1.0]]
    """
    truncated_TB = _flags(discount_TB, reward_TB, value_TB, next_value_TB, truncated_TB)
    if not _all((gae_lambda >= 0.0) & (gae_lambda <= 1.0)):  # `check_all` alone takes longer
        check_all(*(inside(0.0, 1.0, gae_lambda=float(each)) for each in np.ravel(gae_lambda)))
    error_TB = _errors(discount_TB, reward_TB, value_TB, next_value_TB)
    advantage_TB = _sum_backwards(error_TB, gae_lambda * discount_TB, truncated_TB)
    return Advantages(advantage_TB, advantage_TB + value_TB)


@_without_gradient
def vtrace(
    log_rho_TB: ArrayT,
    discount_TB: ArrayT,
    reward_TB: ArrayT,
    value_TB: ArrayT,
    next_value_TB: ArrayT,
    truncated_TB: BoolArray | Tensor,
    *,
    rho_clip: float | FloatArray = 1.0,
    c_clip: float | FloatArray = 1.0,
) -> Advantages[ArrayT]:
    """Compute V-trace targets: value targets for data that older weights collected.

    This is equation 1 of Espeholt et al. 2018 (IMPALA). The importance ratio of each step is
    clipped at `rho_clip`, which decides which policy's value is estimated, and at `c_clip`, which
    limits how far corrections propagate to earlier steps. With equal policies the targets are
    n-step returns up to the end of the data. Ends of episodes are treated as in `gae`.

    Shapes: T steps, B environments; float32. Arrays, or tensors of one device, as in `gae`.

    Args:
        log_rho_TB: log pi(a|x) - log mu(a|x), learner minus collector.
        discount_TB: gamma, and 0 where the step terminated. Not 0 where it was truncated.
        reward_TB: The rewards.
        value_TB: The learner's value of each observation.
        next_value_TB: The value of the next observation; at the end of an episode, of its last
            observation.
        truncated_TB: Whether the episode was cut off with the step.
        rho_clip: Lower means less variance and more bias. Usually 1; infinity disables it.
        c_clip: Lower propagates corrections less far. Usually 1; never above `rho_clip`. Both are
            one number for all environments, or an array of one for each, [B].

    Raises:
        ShapeError: If the inputs do not agree on T and B.
        ConfigError: If a clip is not above 0, or `c_clip` is above `rho_clip`.

    Example:
        >>> one, no = np.ones((2, 1), dtype=np.float32), np.zeros((2, 1), dtype=np.bool_)
        >>> vtrace(0 * one, 0.5 * one, one, 0 * one, 0 * one, no).target_TB.T.tolist()
        [[1.5, 1.0]]
    """
    truncated_TB = _flags(log_rho_TB, discount_TB, reward_TB, value_TB, next_value_TB, truncated_TB)
    if not _all((c_clip > 0.0) & (c_clip <= rho_clip)):
        for pair in np.broadcast(rho_clip, c_clip):
            rho, c = map(float, pair)
            check_all(positive(rho_clip=rho, c_clip=c), at_least(c, rho_clip=rho))
    rho_TB = ratios(log_rho_TB).clip(None, rho_clip)
    error_TB = rho_TB * _errors(discount_TB, reward_TB, value_TB, next_value_TB)
    correction_TB = _sum_backwards(error_TB, discount_TB * rho_TB.clip(None, c_clip), truncated_TB)

    # The next value is corrected in the same way if the next step is of the same episode.
    next_correction_TB = zeros_like(correction_TB)
    next_correction_TB[:-1] = correction_TB[1:]
    next_correction_TB[truncated_TB] = 0.0
    next_target_TB = next_value_TB + next_correction_TB
    advantage_TB = rho_TB * _errors(discount_TB, reward_TB, value_TB, next_target_TB)
    return Advantages(advantage_TB, correction_TB + value_TB)


def _errors(
    discount_TB: AnyArray, reward_TB: AnyArray, value_TB: AnyArray, next_TB: AnyArray
) -> AnyArray:
    error_TB = floats(discount_TB * next_TB)
    error_TB += reward_TB
    error_TB -= value_TB
    return error_TB


def _sum_backwards(term_TB: AnyArray, decay_TB: AnyArray, truncated_TB: AnyArray) -> AnyArray:
    """Turn terms into x with x_t = term_t + decay_t x_(t+1), where x after the last step is 0.

    Decays at truncations become 0. Both arguments may be overwritten; the terms are returned.
    """
    decay_TB[truncated_TB] = 0.0
    sum_up = _sum_by_doubling if isinstance(term_TB, Tensor) else _sum_in_a_loop
    return sum_up(term_TB, decay_TB)


def _sum_in_a_loop(term_TB: FloatArray, decay_TB: FloatArray) -> FloatArray:
    """Sum row by row; on a CPU forms without a loop would repeat the same sums several times."""
    rows, decays = list(term_TB), list(decay_TB)
    if not rows:
        return term_TB
    multiply, add = np.multiply, np.add  # looked up once, as each of the many calls is short
    following_B = rows.pop()
    product_B = np.empty_like(following_B)
    while rows:
        row_B = rows.pop()
        multiply(decays[len(rows)], following_B, product_B)
        following_B = add(row_B, product_B, row_B)
    return term_TB


def _sum_by_doubling(term_TB: Tensor, decay_TB: Tensor) -> Tensor:
    """Sum in log2(T) rounds (Hillis and Steele 1986), as each step of a loop is a call to a GPU.

    Before each round a term is the sum over `reach` steps and a decay their product. The sum over
    twice as many steps is this sum plus the decayed sum of the steps after it.
    """
    for doubling in range(math.ceil(math.log2(max(1, len(term_TB))))):
        reach = 2**doubling
        later_TB, decay_before_TB = term_TB[reach:], decay_TB[:-reach]
        term_TB[:-reach] += decay_before_TB * later_TB
        decay_TB[:-reach] = decay_before_TB * decay_TB[reach:]
    return term_TB


def _all(flags: Any) -> bool:  # noqa: ANN401 - a flag, or an array of them
    return bool(flags if isinstance(flags, bool) else flags.all())


def _flags(*given_TB: AnyArray) -> AnyArray:
    """Check that all inputs are of one shape, and return the last one, flags, as bools."""
    if not all(isinstance(each, np.ndarray | Tensor) for each in given_TB):
        found = ", ".join(kind_of(each) for each in given_TB)
        raise ShapeError(f"The inputs are {found}; arrays were expected, or tensors.")
    shapes = [tuple(each.shape) for each in given_TB]
    if len(set(shapes)) > 1 or len(shapes[0]) != 2:
        raise ShapeError(
            f"The inputs have the shapes {', '.join(map(str, shapes))}; all of one shape (steps, "
            f"environments) were expected."
        )
    # As an index, 0 and 1 would be the first two rows.
    return given_TB[-1] if given_TB[-1].dtype in BOOLS else given_TB[-1] != 0


def ratios(log_rho: AnyArray) -> AnyArray:
    """Return importance ratios, given their logarithms; an infinite one would make NaN of 0."""
    return namespace(log_rho).exp(log_rho.clip(None, _HIGHEST_LOG))


def _check_several(rows: Rows) -> None:
    if rows.largest == 1:
        raise ConfigError(
            "`normalize_advantage` is True, and an update has a single env step: its advantage "
            "minus the mean is 0, so that the policy would never change. Choose a larger "
            "`batch_size` (or `unroll`), or set normalize_advantage=False."
        )


def normalized(rows: Rows, advantage_GB: AnyArray) -> AnyArray:
    """Normalise the advantages of each member to mean 0 and standard deviation 1."""
    _check_several(rows)
    centred_GB = advantage_GB - rows.mean(advantage_GB)[:, None]
    spread_G = rows.mean(centred_GB * centred_GB) ** 0.5
    centred_GB /= spread_G[:, None] + 1e-8
    return centred_GB


def normalized_by_rho(rows: Rows, advantage_GB: AnyArray, rho_GB: AnyArray) -> AnyArray:
    """Normalise advantages that are multiplied by their ratios to mean 0 and deviation 1.

    Mean and deviation are those of a member's plain advantages, weighted by the ratios. So actions
    that the policy no longer takes keep a gradient of 0. If the plain mean were subtracted, they
    would count as good whenever the other actions are bad.
    """
    _check_several(rows)
    weight_G = rows.mean(rho_GB).clip(1e-8, None)
    mean_G = rows.mean(advantage_GB) / weight_G
    error_GB = unweighted(advantage_GB, rho_GB) - mean_G[:, None]
    spread_G = (rows.mean(rho_GB * (error_GB * error_GB)) / weight_G) ** 0.5
    weighted_GB = rho_GB * error_GB
    weighted_GB /= spread_G[:, None] + 1e-8
    return weighted_GB


def unweighted(weighted_B: AnyArray, rho_B: AnyArray) -> AnyArray:
    """Divide products by their ratios; the result is 0 where a ratio is 0."""
    return weighted_B / rho_B.clip(_TINY, None)
