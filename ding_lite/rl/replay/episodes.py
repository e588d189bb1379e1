"""A replay of whole episodes, which samples sequences of env steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ding_lite.errors import CheckpointError, ConfigError, ShapeError
from ding_lite.io.memory import check_fits
from ding_lite.rl.batch import NumpyArray, Sequences, Step
from ding_lite.rl.replay.outputs import Outputs
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import check_all, whole

_ENDS = ("terminated", "truncated")


class EpisodeBuffer:
    """The newest finished episodes; samples are sequences of consecutive env steps.

    An episode of L env steps takes L + 1 rows, one for each observation. It is stored when it ends,
    as a whole, in place of the oldest ones; of one with more observations than there are rows only
    the end is kept.

    Args:
        spec: The environments', for the shapes and types.
        capacity: How many observations to keep.
        num_envs: How many environments each step comes from.
        seed: Draws the samples.

    Raises:
        ConfigError: If a setting is out of range, or the machine has too little memory.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("CartPole-v1", 4)
        >>> episodes = EpisodeBuffer(envs.spec, capacity=10_000, num_envs=4)
        >>> while episodes.num_episodes < 8:
        ...     episodes.add(envs.step(envs.random_actions()))
        >>> episodes.sample(16, length=5).obs.shape
        torch.Size([16, 6, 4])
    """

    def __init__(self, spec: EnvSpec, *, capacity: int, num_envs: int, seed: int = 0) -> None:
        """Reserve the memory."""
        check_all(whole(2, capacity=capacity), whole(1, num_envs=num_envs))
        self.spec = spec
        self.capacity = capacity
        self.num_envs = num_envs
        self._rng = make_rng(seed, "episodes")
        layout: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            "obs": (spec.obs_shape, np.dtype(spec.obs_dtype)),
            "action": (spec.action_shape, np.dtype(spec.action_dtype)),
            "reward": ((), np.dtype(np.float32)),
            "terminated": ((), np.dtype(np.bool_)),
            "truncated": ((), np.dtype(np.bool_)),
        }
        self.memory_bytes = capacity * sum(
            dtype.itemsize * int(np.prod(shape)) for shape, dtype in layout.values()
        )
        """The size of the full buffer, in bytes, without the episodes under way."""
        check_fits(self.memory_bytes, what=f"A buffer for {spec.env_id}", capacity=capacity)
        self._arrays: dict[str, NumpyArray] = {
            name: np.zeros((capacity, *shape), dtype=dtype)
            for name, (shape, dtype) in layout.items()
        }
        # Rows are numbered in order, and number n lies in row n % capacity. An episode is
        # known by the number of its first row and its length in env steps.
        self._next = 0
        self._episodes: deque[tuple[int, int]] = deque()
        self._num_steps = 0
        self._starts_and_ends: tuple[NumpyArray, NumpyArray] | None = None
        # The steps of the episodes under way, (obs, action, reward) each, by environment.
        longest = capacity - 1
        self._open: list[deque[tuple[NumpyArray, Any, Any]]] = [
            deque(maxlen=longest) for _ in range(num_envs)
        ]
        self._outputs = Outputs()

    @property
    def num_episodes(self) -> int:
        """The number of finished episodes."""
        return len(self._episodes)

    def __len__(self) -> int:
        """Count the env steps of the finished episodes."""
        return self._num_steps

    def add(self, step: Step) -> None:
        """Add a step to the episode of each environment; store the episodes that it ends.

        Raises:
            ShapeError: If the step is not one of N environments as the spec says.
        """
        self._check(step)
        for env, steps in enumerate(self._open):
            # Copies: a view would keep the observations of all environments.
            steps.append((step.obs[env].copy(), step.action[env].copy(), step.reward[env]))
        for env in np.flatnonzero(step.terminated | step.truncated).tolist():
            ends = (step.terminated[env], step.truncated[env])
            self._keep(list(self._open[env]), step.next_obs[env], ends)
            self._open[env].clear()

    def reset(self) -> None:
        """Drop the episodes under way; needed when environments are reset amid them."""
        for steps in self._open:
            steps.clear()

    def sample(self, batch_size: int, *, length: int) -> Sequences:
        """Sample sequences, as torch tensors. Each env step is equally likely to be the first.

        Args:
            batch_size: How many sequences.
            length: Env steps of each, at most: a sequence ends with its episode.

        Raises:
            ConfigError: If there is no episode yet, or a number is below 1.
        """
        check_all(whole(1, batch_size=batch_size, length=length))
        if not self._episodes:
            raise ConfigError("No episode has ended yet, so there is none to sample from.")
        if self._starts_and_ends is None:
            starts, lengths = np.array(self._episodes).T
            self._starts_and_ends = starts, lengths.cumsum()
        starts, ends = self._starts_and_ends

        step_B = self._rng.integers(0, self._num_steps, size=batch_size)
        episode_B = ends.searchsorted(step_B, side="right")
        left_B1 = (ends[episode_B] - step_B)[:, None]  # env steps to the end of the episode
        last_row_B1 = (starts + np.diff(ends, prepend=0))[episode_B][:, None]
        row_BT = last_row_B1 - np.maximum(left_B1 - np.arange(length + 1), 0)
        row_BT %= self.capacity
        mask_BT = np.arange(length) < left_B1

        taken = {"obs": self._outputs.take(self._arrays["obs"], row_BT), "mask": mask_BT}
        for name in ("action", "reward", *_ENDS):
            # The row of an episode's last observation has zeros in all the others.
            taken[name] = self._arrays[name].take(row_BT[:, :-1], axis=0)
        return Sequences(**{name: torch.from_numpy(array) for name, array in taken.items()})

    def clear(self) -> None:
        """Remove all episodes, also those under way."""
        self.reset()
        self._episodes.clear()
        self._num_steps = 0
        self._starts_and_ends = None

    def _keep(
        self, steps: list[tuple[NumpyArray, Any, Any]], last_obs: NumpyArray, ends: tuple[Any, Any]
    ) -> None:
        """Write an episode over the oldest ones."""
        length = len(steps)
        while self._episodes and self._next + length + 1 - self._episodes[0][0] > self.capacity:
            self._num_steps -= self._episodes.popleft()[1]

        row_L = (self._next + np.arange(length)) % self.capacity
        last_row = (self._next + length) % self.capacity
        obs, action, reward = zip(*steps, strict=True)
        for name, values in (("obs", obs), ("action", action), ("reward", reward)):
            self._arrays[name][row_L] = values
        for name, end in zip(_ENDS, ends, strict=True):
            self._arrays[name][row_L] = False
            self._arrays[name][row_L[-1]] = end
        for array in self._arrays.values():
            array[last_row] = 0
        self._arrays["obs"][last_row] = last_obs

        self._episodes.append((self._next, length))
        self._next += length + 1
        self._num_steps += length
        self._starts_and_ends = None

    def _check(self, step: Step) -> None:
        for name, array in self._arrays.items():
            found, expected = getattr(step, name).shape, (self.num_envs, *array.shape[1:])
            if found != expected:
                raise ShapeError(
                    f"`step.{name}` has shape {tuple(found)}; {self.num_envs} environments of "
                    f"{self.spec.env_id} have {expected}."
                )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs; the arrays are the buffer's own memory."""
        used = min(self._next, self.capacity)
        return {
            "next": self._next,
            "episodes": np.array(self._episodes, dtype=np.int64).reshape(-1, 2),
            "rng": rng_state(self._rng),
            "arrays": {name: array[:used] for name, array in self._arrays.items()},
            "open": [
                [np.array(column) for column in zip(*steps, strict=True)] for steps in self._open
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        Raises:
            CheckpointError: If it is no state of such a buffer.
        """
        expected = self.state_dict().keys()
        if state.keys() != expected or len(state["open"]) != self.num_envs:
            raise CheckpointError(
                f"This is no state of an EpisodeBuffer of {self.num_envs} environments: it has "
                f"{sorted(state)}."
            )
        used = min(state["next"], self.capacity)
        for name, array in self._arrays.items():
            saved = state["arrays"][name]
            if saved.shape != (used, *array.shape[1:]):
                raise CheckpointError(
                    f"The saved `{name}` has shape {saved.shape}; {(used, *array.shape[1:])} was "
                    f"expected. Was it saved with another environment, or another capacity?"
                )
        for name, array in self._arrays.items():
            array[:used] = state["arrays"][name]
        self._next = int(state["next"])
        self._episodes = deque((int(start), int(length)) for start, length in state["episodes"])
        self._num_steps = sum(length for _, length in self._episodes)
        self._starts_and_ends = None
        for steps, columns in zip(self._open, state["open"], strict=True):
            steps.clear()
            steps.extend(zip(*columns, strict=True))
        set_rng_state(self._rng, state["rng"])
