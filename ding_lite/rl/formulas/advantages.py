"""Advantages of a rollout, on arrays or on tensors, and their normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ding_lite.rl.formulas.returns import gae, vtrace
from ding_lite.rl.formulas.returns_on_device import gae_on_device, vtrace_on_device
from ding_lite.rl.host_or_device import AnyArray, number

_TINY = float(np.finfo(np.float32).tiny)


def gae_of(value_TB: AnyArray) -> Any:  # noqa: ANN401 - two functions of the same arguments
    """Return `gae` for values on a CPU, or `gae_on_device`."""
    return gae_on_device if isinstance(value_TB, Tensor) else gae


def vtrace_of(value_TB: AnyArray) -> Any:  # noqa: ANN401 - two functions of the same arguments
    """Return `vtrace` for values on a CPU, or `vtrace_on_device`."""
    return vtrace_on_device if isinstance(value_TB, Tensor) else vtrace


def normalized(advantage_B: AnyArray) -> AnyArray:
    """Normalise advantages to mean 0 and standard deviation 1.

    Example:
        >>> normalized(np.array([1.0, 3.0], dtype=np.float32)).round(4).tolist()
        [-1.0, 1.0]
    """
    centred_B = advantage_B - number(advantage_B.sum()) / len(advantage_B)
    spread = (number(centred_B @ centred_B) / len(centred_B)) ** 0.5
    centred_B /= spread + 1e-8
    return centred_B


def normalized_by_rho(advantage_B: AnyArray, rho_B: AnyArray) -> AnyArray:
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
    total = number(rho_B.sum().clip(1e-8, None))
    error_B = unweighted(advantage_B, rho_B) - number(advantage_B.sum()) / total
    spread = (number(rho_B @ (error_B * error_B)) / total) ** 0.5
    weighted_B = rho_B * error_B
    weighted_B /= spread + 1e-8
    return weighted_B


def unweighted(weighted_B: AnyArray, rho_B: AnyArray) -> AnyArray:
    """Divide by ratios what was multiplied by them; where a ratio is 0 the result is 0."""
    return weighted_B / rho_B.clip(_TINY, None)
