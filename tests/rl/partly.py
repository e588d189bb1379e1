"""A probe with observations of several parts, action masks, and each kind of actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space

LENGTH = 4
"""Env steps of an episode."""


class Partly(gymnasium.Env[Any, Any]):
    """Only the part `key`, or the camera's bright rows, say what earns most: 1 a step.

    With `masked` another action would earn 2, but it is not legal, and an error.

    Args:
        action: `choice` of 4, `choices` of 3 and 4, 3 `flags`, or an `amount` from -1 to 1.
        masked: Whether the info has an action mask.
        image: Whether there is a camera.
        by_camera: Whether the camera shows the key, and the part `key` does not.
    """

    def __init__(self, action="choice", masked=False, image=False, by_camera=False):
        parts: dict[str, Space[Any]] = {
            "key": Discrete(3, start=2),
            "noise": Box(-1.0, 1.0, (2,), dtype=np.float32),
        }
        if image or by_camera:
            parts["camera"] = Box(0, 255, (8, 8, 3), dtype=np.uint8)
        self.has_camera = "camera" in parts
        self.observation_space = Dict(parts)
        spaces: dict[str, Space[Any]] = {
            "choice": Discrete(4),
            "choices": MultiDiscrete([3, 4], start=[1, 0]),
            "flags": MultiBinary(3),
            "amount": Box(-1.0, 1.0, (1,), dtype=np.float32),
        }
        self.action_space = spaces[action]
        self.kind, self.masked, self.by_camera = action, masked, by_camera

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return self.see()

    def see(self):
        self.key = int(self.np_random.integers(3))
        noise = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        obs = {"key": 2 if self.by_camera else self.key + 2, "noise": noise}
        if self.has_camera:
            camera = np.zeros((8, 8, 3), dtype=np.uint8)
            camera[3 * self.key : 3 * self.key + 2] = 255
            obs["camera"] = camera
        return obs, self.tell()

    def tell(self):
        if not self.masked:
            return {}
        last = np.array([1, 1, 1, 0], dtype=np.int8)
        return {"action_mask": (np.ones(3), last) if self.kind == "choices" else last}

    def step(self, action):
        reward = self.earn(action)
        self.now += 1
        obs, info = self.see()
        return obs, float(reward), self.now == LENGTH, False, info

    def earn(self, action):
        if self.kind == "amount":
            return 1.0 - abs(action[0] - (self.key - 1))
        if self.kind == "flags":
            assert action.dtype == np.int8
            return (action == np.eye(3)[self.key]).mean() * 2.0 - 1.0
        if self.kind == "choices":
            assert self.action_space.contains(action)
            assert not (self.masked and action[1] == 3)
            return 0.5 * (action[0] - 1 == self.key) + 0.5 * (action[1] == (self.key + 1) % 3)
        assert not (self.masked and action == 3)
        return 2.0 if self.masked and action == 3 else float(action == self.key)


def legal(spec, obs):
    """Return which actions are legal, [..., A]."""
    mask = spec.action_mask(obs)
    assert mask is not None
    return mask


gymnasium.register("partly/Partly-v0", entry_point=f"{__name__}:Partly")
