"""Catch, an environment of images without a ROM: balls fall, drift and bounce off the walls.

Importing `make_envs` registers it with gymnasium as `ding_lite/Catch-v0`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from ding_lite.rl.batch import NumpyArray

CATCH_ID = "ding_lite/Catch-v0"
_LIT, _DIM = 255, 160
_FASTEST = 2
"""The largest drift of a ball in a step: faster than the paddle, so the policy must plan ahead."""
_SCALE = 16
"""The side of a rendered pixel."""


class Catch(gymnasium.Env[NumpyArray, np.int64]):
    """An environment in which a paddle must be below each ball when the ball lands.

    One image of `size` x `size` bytes shows the ball and the paddle; the direction of the drift
    needs two images (`frame_stack=2`). Actions: 0 left, 1 stay, 2 right. The reward is 1 for a
    caught ball and -1 for a missed one; the next ball starts at once. The episode ends after
    `balls` balls, so the highest return is `balls`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 - as gymnasium's

    def __init__(self, *, size: int = 10, balls: int = 10, render_mode: str | None = None) -> None:
        self.observation_space = Box(0, 255, (size, size, 1), dtype=np.uint8)
        self.action_space = Discrete(3)
        self.render_mode = render_mode
        self._size = size
        self._balls = balls
        self._paddle = size // 2
        self._row = self._column = self._drift = self._balls_left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NumpyArray, dict[str, Any]]:
        super().reset(seed=seed)
        self._balls_left = self._balls
        self._paddle = self._size // 2
        self._throw()
        return self._picture(), {}

    def step(self, action: np.int64 | int) -> tuple[NumpyArray, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 1), self._size - 2)
        self._row += 1
        self._column += self._drift
        if not 0 <= self._column < self._size:
            self._drift = -self._drift
            self._column += 2 * self._drift

        reward = 0.0
        if self._row == self._size - 1:
            reward = 1.0 if abs(self._column - self._paddle) <= 1 else -1.0
            self._balls_left -= 1
            self._throw()
        return self._picture(), reward, self._balls_left == 0, False, {}

    def render(self) -> NumpyArray | None:
        if self.render_mode is None:
            return None
        large = self._picture()[:, :, 0].repeat(_SCALE, axis=0).repeat(_SCALE, axis=1)
        return np.stack((large, large // 2, np.where(large == _DIM, _LIT, 40)), axis=-1).astype(
            np.uint8
        )

    def _throw(self) -> None:
        self._row = 0
        self._column = int(self.np_random.integers(self._size))
        self._drift = int(self.np_random.integers(-_FASTEST, _FASTEST + 1))

    def _picture(self) -> NumpyArray:
        picture = np.zeros((self._size, self._size, 1), dtype=np.uint8)
        picture[self._size - 1, self._paddle - 1 : self._paddle + 2] = _DIM
        picture[self._row, self._column] = _LIT
        return picture


def register_catch() -> None:
    if CATCH_ID not in gymnasium.registry:
        gymnasium.register(CATCH_ID, entry_point=f"{__name__}:Catch")
