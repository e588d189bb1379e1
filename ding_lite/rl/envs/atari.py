"""The usual wrappers of Atari games."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from ding_lite.errors import ConfigError, MissingExtraError, pip_line
from ding_lite.rl.envs.checks.faults import Env

FRAME_STACK = 4
"""The images of an observation, which show motion together."""
ATARI_ARGS = {"frameskip": 1}
"""The arguments of a game for `play_atari`, which itself skips frames."""


def play_atari(env: Env) -> Env:
    """Wrap a game: 4 frames per step, the maximum of the last two, grey, 84 x 84.

    A game begins with up to 30 steps without an action. The preprocessing is that of Mnih et al.
    (2015), "Human-level control through deep reinforcement learning". Sticky actions are an
    argument of the game.
    """
    check_is_game(env)
    try:
        return gymnasium.wrappers.AtariPreprocessing(env)
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtraError(
            f"Atari games need a package that is not installed. Install it: {pip_line('atari')}."
        ) from error


def check_is_game(env: Env | VectorEnv[Any, Any, Any], *, setting: str = "atari") -> None:
    if not hasattr(env.unwrapped, "ale"):
        fault = "no Atari game"
        if isinstance(env, VectorEnv):
            fault = "a vector, and games are wrapped before they are joined"
        raise ConfigError(
            f"`{setting}` is on, but {type(env.unwrapped).__name__} is {fault}. Leave it off, or "
            f"take the id of a game such as ALE/Breakout-v5."
        )


class EndAtLifeLoss(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends an episode with each life; the next reset continues the same game.

    A step that loses a life but does not end the game returns True for both `terminated` and
    `truncated`, by which `Envs` distinguishes it from the end of a game.
    """

    def __init__(self, env: Env) -> None:
        check_is_game(env, setting="end_at_life_loss")
        super().__init__(env)
        self._lives = 0
        self._has_lost_life = False
        self._newest: tuple[Any, dict[str, Any]] = (None, {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:  # noqa: ANN401
        if not self._has_lost_life or seed is not None:
            self._newest = self.env.reset(seed=seed, options=options)
        self._has_lost_life = False
        self._lives = self._count()
        return self._newest

    def step(self, action: Any) -> Any:  # noqa: ANN401 - of the game
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._newest = obs, info
        lives = self._count()
        self._has_lost_life = 0 < lives < self._lives and not (terminated or truncated)
        if self._has_lost_life:
            return obs, reward, True, True, info
        return obs, reward, terminated, truncated and not terminated, info

    def _count(self) -> int:
        game: Any = self.env.unwrapped
        return int(game.ale.lives())
