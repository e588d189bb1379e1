"""Running normalisation of rewards by the size of discounted returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ding_lite.errors import ConfigError
from ding_lite.rl.batch import BoolArray, FloatArray
from ding_lite.rl.networks.inputs import RunningNorm

BatchT = TypeVar("BatchT", bound=Any)


class RewardNorm:
    """Divides rewards by the standard deviation of their discounted sums.

    The sum of an environment is R <- gamma R + r, from the first reward of each episode on.
    (gymnasium's `NormalizeReward` begins anew with the last reward of an episode that terminated,
    and, for a single environment, not at all where one was cut off.) The mean is not subtracted,
    which keeps the signs. Rewards are stored unchanged and divided when they are learned from, all
    of a batch by the same number, however old they are.

    Example:
        >>> norm = RewardNorm(2, gamma=0.5)
        >>> for _ in range(2):
        ...     norm.update(np.array([4.0, 8.0]), np.array([False, True]))
        >>> norm.scale  # the sums were 4, 8, 6, 8
        0.6030226945877075
    """

    def __init__(self, num_envs: int, *, gamma: float) -> None:
        self.gamma = gamma
        self._sum_N = np.zeros(num_envs)
        self._sums = RunningNorm(1)
        self._has_measured = False

    @property
    def scale(self) -> float:
        """The factor of rewards: 1 / the standard deviation of all sums so far."""
        return float(self._sums.scale_I[0])

    def update(self, reward_N: FloatArray, done_N: BoolArray) -> None:
        self._sum_N = self.gamma * self._sum_N + reward_N
        self._sums.update(self._sum_N[:, None])
        self._has_measured = True
        self.restart(done_N)

    def restart(self, done_N: BoolArray) -> None:
        """Restart the sums of environments with an ended episode."""
        self._sum_N[done_N] = 0.0

    def __call__(self, batch: BatchT) -> BatchT:
        """Return transitions, sequences or a rollout with rewards multiplied by `scale`."""
        if not self._has_measured:
            raise ConfigError(
                "The environments of `normalize_rewards` have made no env step on this node, so "
                "the size of rewards is unknown. Give those that collect here; if other nodes "
                "collect, scale rewards there, by `make_envs(..., reward_scale=)`."
            )
        scaled: BatchT = replace(batch, reward=batch.reward * self.scale)
        return scaled

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._sums.state_dict(), "sum": self._sum_N.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums.load_state_dict(state["sums"])
        self._sum_N[:] = state["sum"]
        self._has_measured = float(state["sums"]["count"]) > 0.0
