"""Probe environments that show what `Envs` does with them; registered under `probe/`, too."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ding_lite.testing.probes import Endless, Probe  # also registers those with known answers


def f32(values):
    return np.array(values, dtype=np.float32)


class Counter(Probe):
    """Shows (episode, step); an episode terminates after `length` steps."""

    observation_space = Box(-np.inf, np.inf, (2,), dtype=np.float32)

    def __init__(self, length=3):
        super().__init__()
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
    """Has a NaN in the third observation of `step`, the second of `reset`, or the second reward."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def see(self):
        obs = super().see()
        places = {"step": self.now == 3.0, "reset": self.episode == 1 and self.now == 0.0}
        if places.get(self.where):
            obs[1] = np.nan
        return obs

    def play(self, action):
        reward, terminated = super().play(action)
        return (np.nan if self.where == "reward" and self.now == 2.0 else reward), terminated


class TellsSuccess(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says that a step with action 1 was a success, one with 0 was none, and nothing of others."""

    def __init__(self, env):
        super().__init__(env)
        self.action_space = Discrete(3)

    def step(self, action):
        *rest, info = self.env.step(min(action, 1))
        return *rest, info | ({} if action == 2 else {"is_success": bool(action)})


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


class Room(Probe):
    """Shows one of five numbers, 3 to 7: the last one plus the action, in a circle."""

    observation_space = Discrete(5, start=3)

    def see(self):
        return 3 + int(self.now)

    def play(self, action):
        self.now = (self.now + action) % 5
        return 0.0, False


class Picture(Probe):
    """Shows an image of channel, row, column, and the number of steps."""

    def __init__(self, layout="last", dtype="uint8"):
        super().__init__()
        shape = {"last": (6, 5, 3), "first": (3, 6, 5), "none": (6, 5)}[layout]
        self.observation_space = Box(0, 255, shape, dtype=dtype)
        self.layout = layout

    def see(self):
        channel, row, column = np.indices((3, 6, 5))
        picture = (channel * 80 + row * 10 + column + self.now).astype(self.observation_space.dtype)
        if self.layout == "last":
            return picture.transpose(1, 2, 0)
        return picture if self.layout == "first" else picture[0]

    def play(self, action):
        self.now += 1.0
        return 0.0, self.now == 3.0


class Wanders(Probe):
    """A random walk by its generator, with episodes of random length."""

    def first(self):
        return float(self.np_random.normal())

    def play(self, action):
        self.now += float(self.np_random.normal()) + float(action) - 0.5
        return self.now, bool(self.np_random.random() < 0.05)


class WandersElsewhere(Wanders):
    """Draws from a generator of its own, which cannot be saved."""

    def first(self):
        return float(np.random.default_rng().normal())


EXITS = {
    "sys.exit(0)": SystemExit(0),
    "sys.exit(None)": SystemExit(),
    "sys.exit(3)": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
}


class Weak(Probe):
    """Fails in a step with action 1, in the way of `how`."""

    def __init__(self, how="raise", index=0):
        super().__init__()
        self.how = how
        self.index = index

    def play(self, action):
        self.now += 1.0
        if action == 1.0:
            if self.how == "raise":
                raise ArithmeticError("the sum does not work out")
            if self.how == "exit":
                os._exit(3)
            if self.how in EXITS:
                raise EXITS[self.how]
            if self.how == "hang":
                while True:
                    threading.Event().wait(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0, False


class CountersTogether(VectorEnv[Any, Any, Any]):
    """`Counter` as a vector environment, with each of gymnasium's rules for resets."""

    def __init__(self, num_envs, length=3, max_episode_steps=None):
        self.num_envs = num_envs
        self.length = length
        self.single_observation_space = Counter.observation_space
        self.single_action_space = Counter.action_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.now = np.zeros((num_envs, 2), dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        if options is None:
            self.now[:] = 0.0
        else:
            self._next_episode(options["reset_mask"])
        return self.now.copy(), {}

    def step(self, actions):
        self.now[:, 1] += 1.0
        ended = self.now[:, 1] == self.length
        info = {}
        reward = self.now[:, 1].copy()
        if self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP and ended.any():
            info["final_obs"] = np.empty(self.num_envs, dtype=object)
            for index in np.flatnonzero(ended):
                info["final_obs"][index] = self.now[index].copy()
            self._next_episode(ended)
        return self.now.copy(), reward, ended, np.zeros(self.num_envs, dtype=bool), info

    def _next_episode(self, where):
        self.now[where, 0] += 1.0
        self.now[where, 1] = 0.0


class SameStepCounters(CountersTogether):
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 as in gymnasium


class DisabledCounters(CountersTogether):
    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012 as in gymnasium


class NextStepCounters(CountersTogether):
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 as in gymnasium


def _register(name, entry_point, **settings):
    if f"probe/{name}" not in gymnasium.registry:
        gymnasium.register(f"probe/{name}", entry_point=entry_point, **settings)


for _probe in (
    *(Counter, TurnsNaN, Shifted, Pull, Room, Picture),
    *(Wanders, WandersElsewhere, Weak, Endless),
):
    _register(f"{_probe.__name__}-v0", _probe)
for _kind in (SameStepCounters, DisabledCounters, NextStepCounters):
    _register(f"{_kind.__name__}-v0", Counter, vector_entry_point=_kind)
_register("LongCounter-v0", Counter, kwargs={"length": 10}, max_episode_steps=4)
