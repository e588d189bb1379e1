"""Ways of trying something else than what looks best."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ding_lite.rl.batch import FloatArray


def epsilon_greedy(
    greedy_N: npt.NDArray[np.int64],
    epsilon: float,
    *,
    num_actions: int,
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Replace each action, with probability epsilon, by one drawn from all actions.

    Args:
        greedy_N: The actions that look best.
        epsilon: 0 keeps them all, 1 replaces them all. The greedy one may be drawn again.
        num_actions: Actions are 0 to `num_actions - 1`.
        rng: Two draws are taken from it per action, whatever epsilon is, so that runs which
            differ only in epsilon stay comparable.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> epsilon_greedy(np.array([1, 1, 1]), 0.0, num_actions=2, rng=rng)
        array([1, 1, 1])
    """
    draws_2N = rng.random((2, len(greedy_N)))
    random_N = (draws_2N[1] * num_actions).astype(np.int64)
    return np.where(draws_2N[0] < epsilon, random_N, greedy_N)


def add_noise(
    best_NA: FloatArray, noise: float | FloatArray, *, rng: np.random.Generator
) -> FloatArray:
    """Add normal noise to actions, and keep them from -1 to 1.

    Args:
        best_NA: The actions that look best, from -1 to 1.
        noise: The standard deviation: one for all, or one for each of the N.
        rng: A draw is taken from it for each number, whatever the noise is.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> best_NA = np.zeros((2, 1), dtype=np.float32)
        >>> add_noise(best_NA, np.array([0.0, 9.0], dtype=np.float32), rng=rng).tolist()
        [[0.0], [-1.0]]
    """
    noise_NA = rng.standard_normal(best_NA.shape, dtype=np.float32)
    noise_NA *= np.reshape(np.asarray(noise, dtype=np.float32), (-1, 1))
    noise_NA += best_NA
    return np.clip(noise_NA, -1.0, 1.0, out=noise_NA)
