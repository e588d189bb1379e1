"""Actions: conversion into those of environments, and random ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from gymnasium.vector.utils import batch_space

from ding_lite.rl.batch import BoolArray, NumpyArray
from ding_lite.rl.envs.checks.masks import choice_sizes
from ding_lite.rl.spec import EnvSpec


class ActionForm:
    """Turns actions of policies into those of environments."""

    def __init__(self, spec: EnvSpec) -> None:
        space = spec.action_space
        self._is_number = isinstance(space, Discrete)
        self._start = space.start if isinstance(space, Discrete | MultiDiscrete) else None
        is_kept = self._is_number or space.dtype == np.float32  # actions for a Box are float32
        self._dtype = None if is_kept else space.dtype
        self._ends: list[tuple[NumpyArray, NumpyArray]] = []
        """The bounds of a Box of float64 as float32, which may be outside of it, and its own."""
        if isinstance(space, Box) and space.dtype == np.float64:
            with np.errstate(over="ignore"):
                ends = [(end.astype(np.float32), end) for end in (space.low, space.high)]
            self._ends = ends if any((one != own).any() for one, own in ends) else []

    def of_all(self, action: NumpyArray) -> NumpyArray:
        """Return the actions of a vector environment, [N, ...], as a copy."""
        # A copy, because an environment may write into it.
        action = action.copy() if self._start is None else action + self._start
        for rounded, own in self._ends:
            action = np.where(action == rounded, own, action)
        return action if self._dtype is None else action.astype(self._dtype, copy=False)

    def of_each(self, action: NumpyArray) -> list[Any]:
        own = self.of_all(action)
        return own.tolist() if self._is_number else list(own)


class RandomActions:
    """Draws actions of N environments with a generator of its own."""

    def __init__(self, spec: EnvSpec, num_envs: int, *, seed: int) -> None:
        self._spec = spec
        self._space: Space[Any] = batch_space(spec.action_space, num_envs)
        self._space.seed(seed)

    @property
    def rng(self) -> np.random.Generator:
        return self._space.np_random

    def draw(self, mask_NA: BoolArray | None) -> NumpyArray:
        """Draw an action for each environment, uniformly among the legal ones."""
        space = self._spec.action_space
        if mask_NA is not None:
            lot_NA = np.where(mask_NA, self.rng.random(mask_NA.shape), -1.0)
            ends = np.cumsum(choice_sizes(self._spec))[:-1]
            chosen = [part.argmax(axis=1) for part in np.split(lot_NA, ends, axis=1)]
            return np.stack(chosen, axis=1).reshape(-1, *self._spec.action_shape)
        action: NumpyArray = self._space.sample()
        if isinstance(space, Discrete | MultiDiscrete):
            action = action - space.start
        return action.astype(self._spec.action_dtype)
