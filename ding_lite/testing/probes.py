"""Probe environments with known solutions, for tests of policies.

Importing this module registers them with gymnasium under `probe/`. Each probe tests one part of a
policy: values, discounting, observations, actions, or memory. `-v0` has two actions, `-v1` one
number from -1 to 1. The wrapper `AsImage` turns observations into images.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from ding_lite.rl.batch import NumpyArray

BEST_NUMBER = 0.5
"""The best action of `-v1`."""


class Probe(gymnasium.Env[NumpyArray, Any]):
    """The base of the probes: one number as the observation, and `play` for the dynamics."""

    observation_space: Space[Any] = Box(-10.0, 10.0, (1,), dtype=np.float32)
    action_space: Space[Any] = Discrete(2)
    now: float
    """The number in the observation."""

    def __init__(self, *, continuous: bool = False) -> None:
        self._is_continuous = continuous
        if continuous:
            self.action_space = Box(-1.0, 1.0, (1,), dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NumpyArray, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = self.first()
        return self.see(), {}

    def step(
        self,
        action: Any,  # noqa: ANN401 - a number or an array of one
    ) -> tuple[NumpyArray, SupportsFloat, bool, bool, dict[str, Any]]:
        number = float(action[0]) if self._is_continuous else float(action)
        reward, terminated = self.play(number)
        return self.see(), reward, terminated, False, {}

    def play(self, action: float) -> tuple[float, bool]:
        """Return the reward of an action, and whether the episode terminates.

        A probe overrides this, or the whole of `step`.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither `play` nor `step`.")

    def see(self) -> NumpyArray:
        return np.array([self.now], dtype=np.float32)

    def first(self) -> float:
        return 0.0


class OneReward(Probe):
    """Episodes of one step with reward 1: all values are 1."""

    def play(self, action: float) -> tuple[float, bool]:
        return 1.0, True


class RewardIsObs(Probe):
    """Episodes of one step, with the observation, -1 or 1, as the reward: values equal it."""

    def first(self) -> float:
        return float(self.np_random.choice([-1.0, 1.0]))

    def play(self, action: float) -> tuple[float, bool]:
        return self.now, True


class LateReward(Probe):
    """Episodes of two steps, with observations 0 and 1, and a final reward of 1: V(0) is gamma."""

    def play(self, action: float) -> tuple[float, bool]:
        self.now += 1.0
        return (1.0, True) if self.now == 2.0 else (0.0, False)


class RightAction(Probe):
    """Episodes of one step: action 1 has reward 1, action 0 reward -1; the best number is 0.5."""

    def play(self, action: float) -> tuple[float, bool]:
        return _reward_of(action, 1.0, is_continuous=self._is_continuous), True


class RightActionForObs(RewardIsObs):
    """Like `RightAction`, but with the opposite action or number if the observation is -1."""

    def play(self, action: float) -> tuple[float, bool]:
        return _reward_of(action, self.now, is_continuous=self._is_continuous), True


class Recall(RewardIsObs):
    """Episodes of three steps with observations -1 or 1, then 0, 0; only the last action counts.

    It is rewarded as in `RightActionForObs` for the first observation. Without memory the best mean
    return is 0.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NumpyArray, dict[str, Any]]:
        self._steps = 0
        self._sign = 0.0
        return super().reset(seed=seed, options=options)

    def play(self, action: float) -> tuple[float, bool]:
        self._sign = self._sign or self.now
        self._steps += 1
        self.now = 0.0
        if self._steps < 3:
            return 0.0, False
        return _reward_of(action, self._sign, is_continuous=self._is_continuous), True


class Endless(Probe):
    """Endless episodes with reward 1, truncated after 4 steps: values are 1/(1-gamma)."""

    def play(self, action: float) -> tuple[float, bool]:
        return 1.0, False


class AsImage(gymnasium.ObservationWrapper[NumpyArray, Any, NumpyArray]):
    """Shows the number as the brightness of an image of 10 x 10 bytes, channels last."""

    def __init__(self, env: gymnasium.Env[NumpyArray, Any]) -> None:
        super().__init__(env)
        self.observation_space = Box(0, 255, (10, 10, 1), dtype=np.uint8)

    def observation(self, observation: NumpyArray) -> NumpyArray:
        """Map numbers from -1 to 2 to brightness from 0 to 255."""
        return np.full((10, 10, 1), (observation[0] + 1.0) * 85.0, dtype=np.uint8)


def _reward_of(action: float, sign: float, *, is_continuous: bool) -> float:
    if is_continuous:
        return -((action - sign * BEST_NUMBER) ** 2)
    return 1.0 if (action == 1.0) == (sign > 0.0) else -1.0


def _register() -> None:
    probes = (OneReward, RewardIsObs, LateReward, RightAction, RightActionForObs, Recall, Endless)
    for probe in probes:
        limit = 4 if probe is Endless else None
        for version, continuous in enumerate((False, True)):
            env_id = f"probe/{probe.__name__}-v{version}"
            if env_id not in gymnasium.registry:
                gymnasium.register(
                    env_id,
                    entry_point=f"{__name__}:{probe.__name__}",
                    max_episode_steps=limit,
                    kwargs={"continuous": continuous},
                )


_register()
