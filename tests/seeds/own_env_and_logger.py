"""A user's own environment and logger, in a file that tests of the command line name."""

from typing import Any

import gymnasium as gym
import numpy as np


class Corridor(gym.Env[Any, Any]):
    """Go right for `length` steps."""

    def __init__(self, length: int = 8) -> None:
        """Make the spaces."""
        self.length = length
        self.observation_space = gym.spaces.Dict(
            {"place": gym.spaces.Box(0, 1, (1,), np.float32), "clock": gym.spaces.Discrete(100)}
        )
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Begin on the left."""
        super().reset(seed=seed)
        self.at, self.t = 0, 0
        return self._obs(), {}

    def step(self, action):
        """Go one to the right or to the left."""
        self.at, self.t = max(0, self.at + (1 if action else -1)), self.t + 1
        return self._obs(), float(self.at == self.length), self.at == self.length, self.t >= 99, {}

    def _obs(self) -> dict[str, Any]:
        return {"place": np.array([self.at / self.length], np.float32), "clock": self.t}


def to_my_dashboard(metrics: dict[str, float], env_step: int) -> None:
    """Get the newest of every metric, however rare."""
    print(env_step, metrics.get("return"), metrics.get("eval_return"))  # noqa: T201
