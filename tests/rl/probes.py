"""Environments so small that the right answer is known; registered under `probe/`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space


class Probe(gymnasium.Env[Any, Any]):
    """One number to see; `play` says what an action earns and whether the episode ends."""

    observation_space: Space[Any] = Box(-10.0, 10.0, (1,), dtype=np.float32)
    action_space: Space[Any] = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = self.first()
        return self.see(), {}

    def step(self, action):
        reward, terminated = self.play(int(action))
        return self.see(), reward, terminated, False, {}

    def play(self, action: int) -> tuple[float, bool]:
        raise NotImplementedError

    def see(self):
        return np.array([self.now], dtype=np.float32)

    def first(self):
        return 0.0


class OneReward(Probe):
    """Every episode is one step long and earns 1: all values are 1."""

    def play(self, action):
        return 1.0, True


class RewardIsObs(Probe):
    """One step that earns what was seen, -1 or 1: a value is the observation."""

    def first(self):
        return float(self.np_random.choice([-1.0, 1.0]))

    def play(self, action):
        return self.now, True


class LateReward(Probe):
    """Two steps, 0 then 1, and a reward of 1 at the end: the first value is gamma."""

    def play(self, action):
        self.now += 1.0
        return (1.0, True) if self.now == 2.0 else (0.0, False)


class RightAction(Probe):
    """One step: action 1 earns 1, action 0 loses 1."""

    def play(self, action):
        return (1.0 if action == 1 else -1.0), True


class Endless(Probe):
    """Each step earns 1 for ever; only the time limit of the registration cuts it off."""

    def play(self, action):
        return 1.0, False


class Counter(Probe):
    """See (episode, step) count up; an episode of `length` steps ends for good."""

    observation_space = Box(-np.inf, np.inf, (2,), dtype=np.float32)

    def __init__(self, length=3):
        self.length = length
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        return super().reset(seed=seed)

    def see(self):
        return np.array([self.episode, self.now], dtype=np.float32)

    def play(self, action):
        self.now += 1.0
        return self.now, self.now == self.length


class TurnsNaN(Counter):
    """Gives NaN in its third step, in one of its numbers."""

    def see(self):
        obs = super().see()
        obs[1] = np.nan if self.now == 3.0 else obs[1]
        return obs


class RewardNaN(Counter):
    """Earns NaN in its second step."""

    def play(self, action):
        reward, terminated = super().play(action)
        return (np.nan if self.now == 2.0 else reward), terminated


class Shifted(Probe):
    """Has the actions 5 and 6, and shows the one that was taken."""

    action_space = Discrete(2, start=5)

    def play(self, action):
        self.now = float(action)
        return 0.0, False


class Pull(Probe):
    """Takes a number and shows it."""

    action_space = Box(-2.0, 3.0, (1,), dtype=np.float32)

    def step(self, action):
        self.now = float(action[0])
        return self.see(), 0.0, False, False, {}


class SeesDict(Probe):
    """Has an observation space that is not supported."""

    observation_space = Dict({"x": Box(-1.0, 1.0, (1,))})


class SeesImage(Probe):
    """Has another one."""

    observation_space = Box(0, 255, (8, 8, 3), dtype=np.uint8)


class ActsDict(Probe):
    """Has an action space that is not supported."""

    action_space = Dict({"x": Discrete(2)})


def _register(name, entry_point, **settings):
    if f"probe/{name}" not in gymnasium.registry:
        gymnasium.register(f"probe/{name}", entry_point=entry_point, **settings)


for _probe in (
    OneReward, RewardIsObs, LateReward, RightAction, Counter, TurnsNaN, RewardNaN, Shifted, Pull,
    SeesDict, SeesImage, ActsDict,
):  # fmt: skip
    _register(f"{_probe.__name__}-v0", _probe)
_register("Endless-v0", Endless, max_episode_steps=4)
_register("LongCounter-v0", Counter, kwargs={"length": 10}, max_episode_steps=4)
