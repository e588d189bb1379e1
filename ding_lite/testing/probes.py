"""Probe environments with known solutions, for tests of policies.

Importing this module registers them with gymnasium under `probe/`. If a policy fails at one of
them, its name says where to look: values, discounting, the observation, the choice of actions,
memory.
`-v0` has two actions to choose from, `-v1` one number from -1 to 1. `AsImage` makes pictures of
what they show.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from ding_lite.rl.batch import NumpyArray

BEST_NUMBER = 0.5
"""The action that earns most where any number may be chosen."""


class Probe(gymnasium.Env[NumpyArray, Any]):
    """One number to see; `play` says what an action earns and whether the episode ends."""

    observation_space: Space[Any] = Box(-10.0, 10.0, (1,), dtype=np.float32)
    action_space: Space[Any] = Discrete(2)
    now: float
    """The number that an observation shows."""

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

        A probe defines this, or all of `step`.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither `play` nor `step`.")

    def see(self) -> NumpyArray:
        return np.array([self.now], dtype=np.float32)

    def first(self) -> float:
        return 0.0


class OneReward(Probe):
    """Every episode is one step long and earns 1: all values are 1."""

    def play(self, action: float) -> tuple[float, bool]:
        return 1.0, True


class RewardIsObs(Probe):
    """One step that earns what was seen, -1 or 1: a value is the observation."""

    def first(self) -> float:
        return float(self.np_random.choice([-1.0, 1.0]))

    def play(self, action: float) -> tuple[float, bool]:
        return self.now, True


class LateReward(Probe):
    """Two steps, 0 then 1, and a reward of 1 at the end: the first value is gamma."""

    def play(self, action: float) -> tuple[float, bool]:
        self.now += 1.0
        return (1.0, True) if self.now == 2.0 else (0.0, False)


class RightAction(Probe):
    """One step: action 1 earns 1 and action 0 loses 1; of numbers, 0.5 earns most."""

    def play(self, action: float) -> tuple[float, bool]:
        return _worth(action, 1.0, is_continuous=self._is_continuous), True


class RightActionForObs(RewardIsObs):
    """As `RightAction`, but where -1 is seen it is the other way round."""

    def play(self, action: float) -> tuple[float, bool]:
        return _worth(action, self.now, is_continuous=self._is_continuous), True


class Recall(RewardIsObs):
    """Three steps: -1 or 1 is seen, then 0 and 0; the last action earns as in the first step.

    Without memory the best that a policy can earn is 0 on average.
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
        return _worth(action, self._sign, is_continuous=self._is_continuous), True


class Endless(Probe):
    """Each step earns 1 for ever; only a time limit of 4 cuts it off: values are 1/(1-gamma)."""

    def play(self, action: float) -> tuple[float, bool]:
        return 1.0, False


class AsImage(gymnasium.ObservationWrapper[NumpyArray, Any, NumpyArray]):
    """Shows the number as the brightness of an image of bytes, 10 x 10 pixels, channels last."""

    def __init__(self, env: gymnasium.Env[NumpyArray, Any]) -> None:
        super().__init__(env)
        self.observation_space = Box(0, 255, (10, 10, 1), dtype=np.uint8)

    def observation(self, observation: NumpyArray) -> NumpyArray:
        """Paint what is seen, -1 to 2, from dark to bright."""
        return np.full((10, 10, 1), (observation[0] + 1.0) * 85.0, dtype=np.uint8)


def _worth(action: float, sign: float, *, is_continuous: bool) -> float:
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
