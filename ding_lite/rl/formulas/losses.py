"""Losses with their gradients written out."""

from __future__ import annotations

import numpy as np

from ding_lite.rl.batch import FloatArray


def huber(error_B: FloatArray, weight_B: FloatArray | None = None) -> tuple[float, FloatArray]:
    """Compute the Huber loss: half the square up to 1, linear beyond (Huber 1964).

    Args:
        error_B: The errors.
        weight_B: The weight of each error's loss; 1 without them.

    Returns:
        The mean over B, and its gradient with respect to each error.

    Example:
        >>> loss, grad_B = huber(np.array([0.5, -3.0], dtype=np.float32))
        >>> loss, grad_B.tolist()
        (1.3125, [0.25, -0.5])
    """
    slope_B: FloatArray = np.minimum(np.maximum(error_B, np.float32(-1.0)), np.float32(1.0))
    scaled_B = slope_B if weight_B is None else slope_B * weight_B
    total = scaled_B @ (error_B - np.float32(0.5) * slope_B)
    return float(total) / len(error_B), scaled_B / np.float32(len(error_B))


def squared(error_B: FloatArray, weight_B: FloatArray | None = None) -> tuple[float, FloatArray]:
    """Compute the mean squared error.

    Args:
        error_B: The errors.
        weight_B: The weight of each error's loss; 1 without them.

    Returns:
        The mean over B, and its gradient with respect to each error.

    Example:
        >>> loss, grad_B = squared(np.array([0.5, -3.0], dtype=np.float32))
        >>> loss, grad_B.tolist()
        (4.625, [0.5, -3.0])
    """
    scaled_B = error_B if weight_B is None else error_B * weight_B
    return float(scaled_B @ error_B) / len(error_B), scaled_B * np.float32(2.0 / len(error_B))
