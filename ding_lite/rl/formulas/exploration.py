"""Exploration: epsilon-greedy actions, an epsilon for each collector, and action noise."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ding_lite.rl.batch import BoolArray, FloatArray
from ding_lite.rl.formulas.schedules import Schedule
from ding_lite.settings.rules import at_least, check_all, inside, positive


class Ranked(Protocol):
    """Nodes with ranks, such as a `Group`."""

    def __len__(self) -> int: ...

    @property
    def rank(self) -> int: ...


def epsilon_ladder(
    group: Ranked, *, base: float = 0.4, power: float = 7.0, steps: float = 0.0
) -> Schedule:
    """Make a schedule with a different epsilon for each collector, from high to low.

    Node i of N uses base^(1 + power * i / (N - 1)): some collectors act mostly at random, others
    mostly follow the policy, and the replay has the experience of both (Horgan et al. 2018,
    arXiv:1803.00933, section 4.1). The paper's hundreds of collectors do so from the first env step
    on. With a few collectors that explores too little at first: with `steps` all begin at 1.

    Args:
        group: The collectors.
        base: The epsilon of the first collector, or of a single one.
        power: Higher makes the last collectors act less at random.
        steps: The number of a collector's own env steps in which its epsilon falls linearly from 1
            to its final value; 0 starts with the final value.

    Returns:
        A schedule for `collect(epsilon=...)`.

    Example:
        >>> class Third:
        ...     rank = 2
        ...
        ...     def __len__(self):
        ...         return 3
        >>> round(epsilon_ladder(Third())(0), 6)
        0.000655
    """
    check_all(inside(0.0, 1.0, base=base), positive(power=power), at_least(0.0, steps=steps))

    def _epsilon(env_step: float) -> float:
        # Computed late, because nodes that do not collect make this schedule but have no rank.
        share = float(base ** (1.0 + power * group.rank / max(1, len(group) - 1)))
        return share if env_step >= steps else 1.0 - (1.0 - share) * env_step / steps

    return _epsilon


def epsilon_greedy(
    greedy_N: npt.NDArray[np.int64],
    epsilon: float,
    *,
    num_actions: int,
    rng: np.random.Generator,
    mask_NA: BoolArray | None = None,
) -> npt.NDArray[np.int64]:
    """Replace each action, with probability epsilon, by a random legal one.

    Two numbers are drawn from `rng` per action, for any epsilon, so that runs that differ only in
    epsilon stay comparable. Each row of `mask_NA` has a legal action.
    """
    draws_2N = rng.random((2, len(greedy_N)))
    if mask_NA is None:
        random_N = (draws_2N[1] * num_actions).astype(np.int64)
    else:
        place_N = (draws_2N[1] * mask_NA.sum(axis=1)).astype(np.int64)
        # The first action up to which more legal actions occur than the drawn place.
        random_N = (mask_NA.cumsum(axis=1) > place_N[:, None]).argmax(axis=1)
    return np.where(draws_2N[0] < epsilon, random_N, greedy_N)


def add_noise(
    best_NA: FloatArray, noise: float | FloatArray, *, rng: np.random.Generator
) -> FloatArray:
    """Add normal noise to actions, and clip them to -1 to 1.

    `noise` is the standard deviation, one for all actions or one for each of the N. One number is
    drawn from `rng` for each number of an action, for any `noise`.
    """
    noise_NA = rng.standard_normal(best_NA.shape, dtype=np.float32)
    noise_NA *= np.reshape(np.asarray(noise, dtype=np.float32), (-1, 1))
    noise_NA += best_NA
    return np.clip(noise_NA, -1.0, 1.0, out=noise_NA)
