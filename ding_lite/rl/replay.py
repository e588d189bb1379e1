"""Where transitions wait until they are learned from."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import fields

import numpy as np
import torch

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl.batch import NumpyArray, Transitions
from ding_lite.rl.seeding import make_rng
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import at_least, check_all

logger = logging.getLogger(__name__)

_FIELDS = tuple(field.name for field in fields(Transitions))


class ReplayBuffer:
    """The newest transitions, any of which is equally likely to be sampled.

    A ring of one array per field: adding and sampling cost a few copies, whatever the number
    of transitions. The arrays are made when the first transition comes.

    Args:
        spec: The environment's, for the shapes and types.
        capacity: How many transitions to keep. Higher remembers longer; 1e4 to 1e6 are usual.
            What that takes of memory is in `memory_bytes` before it is taken.
        seed: Draws the samples.

    Raises:
        ConfigError: If the capacity is below 1, or needs more memory than the machine has.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> replay = ReplayBuffer(make_envs("CartPole-v1", 1).spec, capacity=50_000)
        >>> len(replay), replay.memory_bytes
        (0, 2500000)
    """

    def __init__(self, spec: EnvSpec, *, capacity: int, seed: int = 0) -> None:
        """Reserve nothing yet."""
        check_all(at_least(1, capacity=capacity))
        self.spec = spec
        self.capacity = capacity
        obs = (spec.obs_shape, np.dtype(np.float32))
        self._layout: dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]] = {
            "obs": obs,
            "action": (spec.action_shape, np.dtype(spec.action_dtype)),
            "reward": ((), np.dtype(np.float32)),
            "next_obs": obs,
            "terminated": ((), np.dtype(np.bool_)),
            "truncated": ((), np.dtype(np.bool_)),
            "num_steps": ((), np.dtype(np.int32)),
        }
        self._arrays: dict[str, NumpyArray] = {}
        self._next_slot = 0
        self._size = 0
        self._rng = make_rng(seed, "replay")
        self._check_memory()

    @property
    def memory_bytes(self) -> int:
        """What the full replay takes, in bytes."""
        return self.capacity * sum(
            dtype.itemsize * math.prod(shape) for shape, dtype in self._layout.values()
        )

    def __len__(self) -> int:
        return self._size

    def add(self, transitions: Transitions) -> None:
        """Keep transitions, in place of the oldest ones once the replay is full.

        Raises:
            ShapeError: If a field does not have the shape that the environment's spec says.
        """
        count = len(transitions)
        self._check_shapes(transitions, count)
        if count > self.capacity:
            newest = slice(count - self.capacity, None)
            transitions = Transitions(*(getattr(transitions, name)[newest] for name in _FIELDS))
            count = self.capacity
        if not self._arrays:
            self._arrays = {
                name: np.zeros((self.capacity, *shape), dtype=dtype)
                for name, (shape, dtype) in self._layout.items()
            }

        start = self._next_slot
        room = min(count, self.capacity - start)
        for name, array in self._arrays.items():
            values = getattr(transitions, name)
            array[start : start + room] = values[:room]
            if room < count:
                array[: count - room] = values[room:]

        self._next_slot = (start + count) % self.capacity
        self._size = min(self._size + count, self.capacity)

    def sample(self, batch_size: int) -> Transitions:
        """Draw transitions uniformly, with replacement, as torch tensors of their own memory.

        Raises:
            ConfigError: If the replay holds fewer transitions than that.
        """
        if not 0 < batch_size <= self._size:
            raise ConfigError(
                f"`batch_size` is {batch_size}, but the replay holds {self._size} transitions. "
                f"Collect more of them before training, or take smaller batches."
            )
        index_B = self._rng.integers(0, self._size, size=batch_size)
        arrays = self._arrays.values()
        return Transitions(*(torch.from_numpy(array.take(index_B, axis=0)) for array in arrays))

    def _check_shapes(self, transitions: Transitions, count: int) -> None:
        for name, (shape, _) in self._layout.items():
            found = getattr(transitions, name).shape
            if found != (count, *shape):
                raise ShapeError(
                    f"`transitions.{name}` has shape {tuple(found)}; this replay keeps "
                    f"{(count, *shape)} for {count} transitions of {self.spec.env_id}."
                )

    def _check_memory(self) -> None:
        machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if self.memory_bytes > machine_bytes:
            raise ConfigError(
                f"A replay of `capacity` {self.capacity:,} needs {self.memory_bytes / 1e9:.1f} GB "
                f"for {self.spec.env_id}, but this machine has {machine_bytes / 1e9:.1f} GB. "
                f"At most {self.capacity * machine_bytes // self.memory_bytes:,} would fit."
            )
        megabytes = self.memory_bytes / 1e6
        logger.info("a replay of %d transitions takes %.1f MB when full", self.capacity, megabytes)
