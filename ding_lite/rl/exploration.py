"""Ways of trying something else than what looks best."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


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
