"""A replay of whole episodes, from which sequences of env steps are sampled."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields as fields_of
from typing import Any

import numpy as np
import torch

from ding_lite.errors import CheckpointError, ConfigError, ShapeError
from ding_lite.io.memory import check_fits
from ding_lite.rl.batch import Array, NumpyArray, Sequences, Step, Transitions, to_numpy
from ding_lite.rl.replay.outputs import Outputs
from ding_lite.rl.replay.storage import (
    OwnFields,
    bytes_of,
    check_keys,
    check_kind,
    check_shape,
    layout_of_own,
    load_rows,
    step_layout,
    take_own,
    zeros,
)
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec, check_spec
from ding_lite.rl.wrong_calls import explained
from ding_lite.settings.rules import check_all, whole

logger = logging.getLogger(__name__)

_ENDS = ("terminated", "truncated")
_STATE = ("next", "episodes", "rng", "arrays", "last_obs", "open")
_FIRST_ROOM = 16
"""The number of env steps of each unfinished episode for which there is room at first."""


class EpisodeBuffer:
    """The newest finished episodes, from which sequences of consecutive env steps are sampled.

    An episode of L env steps takes L + 1 rows, one for each observation. It is stored as a whole
    when it ends, and replaces the oldest ones. Of an episode that is longer than the buffer only
    the end is stored. With `state_size` the recurrent state before each step is stored too, with
    which a policy with memory begins (R2D2: Kapturowski et al. 2019). If states become longer, as
    when the memory of an agent in a population grows, shorter ones are padded with zeros.

    Args:
        spec: The spec of the environments, for shapes and types.
        capacity: The number of observations to keep.
        num_envs: The number of environments of each step.
        state_size: The length of the recurrent state of an environment; None stores no states. A
            longer state that is added later increases it.
        fields: Your own fields, as in a `ReplayBuffer`, a row for each env step.
        seed: The seed of sampling.

    Raises:
        ConfigError: If a setting is out of range, a field has no usable name, shape or dtype, or
            the machine has too little memory.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("CartPole-v1", 4)
        >>> episodes = EpisodeBuffer(envs.spec, capacity=10_000, num_envs=4)
        >>> while episodes.num_episodes < 8:
        ...     episodes.add(envs.step(envs.random_actions()))
        >>> episodes.sample(16, length=5).obs.shape
        torch.Size([16, 6, 4])
    """

    @explained
    def __init__(
        self,
        spec: EnvSpec,
        *,
        capacity: int,
        num_envs: int,
        state_size: int | None = None,
        fields: OwnFields | None = None,
        seed: int = 0,
    ) -> None:
        check_all(
            whole(2, capacity=capacity),
            whole(1, num_envs=num_envs),
            [] if state_size is None else whole(1, state_size=state_size),
        )
        check_spec(spec)
        self.spec = spec
        self.capacity = capacity
        self.num_envs = num_envs
        self.state_size = state_size
        self._rng = make_rng(seed, "episodes")
        self._own = layout_of_own(fields)
        if self._own.keys() & {"step", "state"}:
            raise ConfigError(
                "`fields` has 'step' or 'state', which `add` takes already. Choose another name; "
                "for recurrent states give `state_size`."
            )
        layout = step_layout(spec)
        if state_size is not None:
            layout["state"] = ((state_size,), np.dtype(np.float32))
        layout |= self._own
        self.memory_bytes = capacity * bytes_of(layout)
        """The size of the full buffer, in bytes, without the episodes under way."""
        check_fits(self.memory_bytes, what=f"A buffer for {spec.env_id}", capacity=capacity)
        self._arrays = zeros(layout, capacity)
        # Rows are numbered in order, and number n is stored in row n % capacity. An episode is
        # identified by the number of its first row and its length in env steps.
        self._next = 0
        self._episodes: deque[tuple[int, int]] = deque()
        self._num_steps = 0
        self._starts_and_ends: tuple[NumpyArray, NumpyArray] | None = None
        self._last_obs: NumpyArray | None = None
        # Episodes that did not go on: the last observations, and in which call of `add` that was.
        self._broken_off: deque[NumpyArray] = deque(maxlen=8)
        self._num_calls, self._broken_in = 0, -1
        # The unfinished episodes, [N, room, ...]: a step of age t is at t % room, and the room
        # grows until it has the longest episode that can be stored.
        unended = {name: each for name, each in layout.items() if name not in _ENDS}
        self._each_N = np.arange(num_envs)
        self._age_N = np.zeros(num_envs, dtype=np.int64)
        self._open = zeros(unended, num_envs, 0)
        self._make_room(min(_FIRST_ROOM, capacity - 1))
        self._outputs = Outputs()

    @property
    def num_episodes(self) -> int:
        """The number of finished episodes."""
        return len(self._episodes)

    def __len__(self) -> int:
        return self._num_steps

    def add(self, step: Step | Transitions, *, state: Array | None = None, **own: Array) -> None:
        """Add a step to the episode of each environment; store the episodes that it ends.

        Args:
            step: One env step of N environments. Or transitions of one env step each, in which
                every N are a step of the N environments, as `mw.collect` makes them; values in
                their `extra`, including `state`, need not be passed separately.
            state: The recurrent states before the step, [N, S], for a buffer with `state_size`.
            **own: The values of the buffer's own `fields`, [N, ...] each.

        Raises:
            ConfigError: If states or own fields are missing or unknown, or steps of several
                collectors are mixed. Episodes that do not go on are dropped otherwise.
            ShapeError: If an array has another shape than the spec and N environments require, or
                another kind of numbers.
        """
        self._num_calls += 1
        if state is not None:
            own["state"] = state
        steps = self._steps_of(step, own) if isinstance(step, Transitions) else [(step, own)]
        for part, own_N in steps:
            self._add(part, own_N)

    def _add(self, step: Step, own: dict[str, Array]) -> None:
        values = self._checked(step, own.pop("state", None), own)
        if self._last_obs is not None:
            self._check_continues(step.obs, self._last_obs)
        self._last_obs = np.array(step.next_obs)  # a loop may reuse its array
        if self._age_N.max() >= self._room < self.capacity - 1:
            self._make_room(min(2 * self._room, self.capacity - 1))
        place_N = self._age_N % self._room
        for name, array in self._open.items():
            array[self._each_N, place_N] = values[name]
        self._age_N += 1
        for env in np.flatnonzero(step.terminated | step.truncated).tolist():
            self._keep(env, step)

    def _make_room(self, room: int) -> None:
        """Give each unfinished episode room for that many env steps, at least as many as before."""
        for name, array in self._open.items():
            self._open[name] = np.zeros((self.num_envs, room, *array.shape[2:]), array.dtype)
            self._open[name][:, : array.shape[1]] = array
        self._room = room

    def _places(self, env: int) -> NumpyArray:
        """Return where the steps of an unfinished episode are, or the newest ones of a long one."""
        age = int(self._age_N[env])
        place_L: NumpyArray = np.arange(max(0, age - self._room), age) % self._room
        return place_L

    def _check_continues(self, obs: NumpyArray, last_obs: NumpyArray) -> None:
        """Drop episodes that do not go on; refuse steps of several collectors."""
        differs_N = (obs != last_obs).reshape(self.num_envs, -1).any(axis=1)
        broken_N = differs_N & (self._age_N > 0)
        num_broken = np.count_nonzero(broken_N)
        if not num_broken:
            return
        # A restarted collector makes its environments anew. The steps of several go on later, or
        # have gaps everywhere.
        is_later = any(np.array_equal(obs, other) for other in self._broken_off)
        if is_later or self._num_calls - self._broken_in <= 1:
            raise ConfigError(
                f"The episodes of {num_broken} of {self.num_envs} environments do not go on: the "
                f"observations of this step are not those that the last one has led to. Give each "
                f"collector a buffer of its own, with `num_envs` as its environments are; call "
                f"`reset()` where environments are reset amid their episodes."
            )
        self._broken_off.append(last_obs)
        self._broken_in = self._num_calls
        self._age_N[broken_N] = 0
        logger.warning(
            "dropped the unfinished episodes of %d of %d environments, which have begun new ones",
            num_broken,
            self.num_envs,
        )

    def _steps_of(
        self, transitions: Transitions, own: Mapping[str, Array]
    ) -> Iterator[tuple[Step, dict[str, Array]]]:
        count, rest = divmod(len(transitions), self.num_envs)
        if rest or (to_numpy(transitions.num_steps) != 1).any():
            raise ShapeError(
                f"{len(transitions)} transitions came, of up to "
                f"{int(to_numpy(transitions.num_steps).max())} env steps each; a multiple of the "
                f"{self.num_envs} environments was expected, of one env step each. Collect with "
                f"`n_step=1`."
            )
        names = [field.name for field in fields_of(Step)]
        columns = {name: to_numpy(getattr(transitions, name)) for name in names}
        more = {**transitions.extra, **own}
        for first in range(0, count * self.num_envs, self.num_envs):
            part = slice(first, first + self.num_envs)
            step = Step(**{name: columns[name][part] for name in names})
            yield step, {name: values[part] for name, values in more.items()}

    def reset(self) -> None:
        """Drop the unfinished episodes; call it when environments are reset within an episode."""
        self._age_N[:] = 0

    def sample(self, batch_size: int, *, length: int, burn_in: int = 0) -> Sequences:
        """Sample sequences, as torch tensors. Each env step is equally likely to be the first.

        Args:
            batch_size: The number of sequences.
            length: The maximum number of env steps; a sequence ends with its episode.
            burn_in: The number of env steps before the first one that are returned too, from which
                a stored recurrent state is updated. Near the beginning of an episode there are
                fewer.

        Returns:
            Sequences of `burn_in + length` steps. The `mask` excludes steps that do not exist: the
            first ones of a shorter burn-in, and those after the end of the episode.

        Raises:
            ConfigError: If no episode is stored yet, or a number is out of range.
        """
        check_all(whole(1, batch_size=batch_size, length=length), whole(0, burn_in=burn_in))
        if not self._episodes:
            raise ConfigError("No episode has ended yet, so there is none to sample from.")
        if self._starts_and_ends is None:
            starts, lengths = np.array(self._episodes).T
            self._starts_and_ends = starts, lengths.cumsum()
        starts, ends = self._starts_and_ends

        step_B = self._rng.integers(0, self._num_steps, size=batch_size)
        episode_B = ends.searchsorted(step_B, side="right")
        lengths = np.diff(ends, prepend=0)[episode_B][:, None]
        left_B1 = (ends[episode_B] - step_B)[:, None]  # env steps to the end of the episode
        # The time of each row in its episode; rows outside of it are not in the mask.
        time_BT = lengths - left_B1 + np.arange(-burn_in, length + 1)
        row_BT = starts[episode_B][:, None] + time_BT.clip(0, lengths)
        row_BT %= self.capacity
        before_BT = time_BT[:, :-1] < 0
        mask_BT = ~before_BT & (time_BT[:, :-1] < lengths)

        taken: dict[str, Any] = {}
        for name in ("action", "reward", *_ENDS, *self._own):
            # In the row of an episode's last observation all other fields are zeros.
            taken[name] = self._outputs.take(self._arrays[name], row_BT[:, :-1])
            if burn_in:
                taken[name][before_BT] = 0
            taken[name] = torch.from_numpy(taken[name])
        extra = {name: taken.pop(name) for name in self._own}
        if self.state_size is not None:
            taken["state"] = torch.from_numpy(self._arrays["state"].take(row_BT[:, 0], axis=0))
        obs = torch.from_numpy(self._outputs.take(self._arrays["obs"], row_BT))
        mask = torch.from_numpy(mask_BT)
        return Sequences(obs, **taken, mask=mask, burn_in=burn_in, extra=extra)

    def clear(self) -> None:
        """Remove all episodes, including the unfinished ones."""
        self.reset()
        self._episodes.clear()
        self._num_steps = 0
        self._starts_and_ends = None

    def _keep(self, env: int, step: Step) -> None:
        """Store the episode of an environment, or the newest steps of a long one."""
        place_L = self._places(env)
        length = len(place_L)
        while self._episodes and self._next + length + 1 - self._episodes[0][0] > self.capacity:
            self._num_steps -= self._episodes.popleft()[1]

        row_L = (self._next + np.arange(length)) % self.capacity
        last_row = (self._next + length) % self.capacity
        for name, array in self._open.items():
            self._arrays[name][row_L] = array[env, place_L]
        for name in _ENDS:
            self._arrays[name][row_L] = False
            self._arrays[name][row_L[-1]] = getattr(step, name)[env]
        for array in self._arrays.values():
            array[last_row] = 0
        self._arrays["obs"][last_row] = step.next_obs[env]

        self._age_N[env] = 0
        self._episodes.append((self._next, length))
        self._next += length + 1
        self._num_steps += length
        self._starts_and_ends = None

    def _checked(
        self, step: Step, state: Array | None, own: Mapping[str, Array]
    ) -> dict[str, NumpyArray]:
        if (state is None) != (self.state_size is None):
            given, made = ("with" if x is not None else "without" for x in (state, self.state_size))
            raise ConfigError(
                f"The step came {given} a `state`, and this buffer was made {made} a `state_size`. "
                f"A policy with memory needs both: `EpisodeBuffer(..., state_size=S)` and "
                f"`add(step, state=memory.state)`."
            )
        given_N = {name: getattr(step, name) for name in step_layout(self.spec)}
        if state is not None:
            given_N["state"] = self._fitted(to_numpy(state))
        if own or self._own:
            given_N |= dict(zip(self._own, take_own(own, self._own), strict=True))
        holder = f"{self.num_envs} environments of {self.spec.env_id} have"
        for name, array in self._arrays.items():
            what = name if name in self._own or name == "state" else f"step.{name}"
            check_shape(what, given_N[name], (self.num_envs, *array.shape[1:]), holder)
            if what == name:
                check_kind(name, given_N[name], array.dtype, "this buffer")
        return given_N

    def _fitted(self, state: NumpyArray) -> NumpyArray:
        """Return states padded with zeros, [N, S]; longer states increase the `state_size`."""
        if state.ndim != 2 or self.state_size is None:
            return state  # the shape is checked later
        self._widen_states(state.shape[1])
        return with_zeros(state, self.state_size)

    def _widen_states(self, size: int) -> None:
        if self.state_size is None or size <= self.state_size:
            return
        more = self.capacity * (size - self.state_size) * np.dtype(np.float32).itemsize
        check_fits(more, what=f"Longer states for {self.spec.env_id}", capacity=self.capacity)
        self.memory_bytes += more
        self.state_size = size
        self._arrays["state"] = with_zeros(self._arrays["state"], size)
        self._open["state"] = with_zeros(self._open["state"], size)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs; the arrays are the buffer's own memory."""
        used = min(self._next, self.capacity)
        return {
            "next": self._next,
            "episodes": np.array(self._episodes, dtype=np.int64).reshape(-1, 2),
            "rng": rng_state(self._rng),
            "arrays": {name: array[:used] for name, array in self._arrays.items()},
            "last_obs": self._last_obs,
            "open": [
                [array[env, self._places(env)] for array in self._open.values()]
                for env in range(self.num_envs)
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        Raises:
            CheckpointError: If it is not the state of such a buffer.
        """
        what = f"an EpisodeBuffer of {self.num_envs} environments"
        check_keys(state, _STATE, what)
        if len(state["open"]) != self.num_envs:
            raise CheckpointError(
                f"This is no state of {what}: it has episodes of {len(state['open'])}."
            )
        if self.state_size is not None and "state" in state["arrays"]:
            self._widen_states(state["arrays"]["state"].shape[-1])
        load_rows(self._arrays, state["arrays"], state["next"])
        ages = [len(columns[0]) for columns in state["open"]]
        self._age_N[:] = 0
        if self._room < max(ages):
            self._make_room(max(ages))
        for env, columns in enumerate(state["open"]):
            for array, column in zip(self._open.values(), columns, strict=True):
                array[env, : ages[env]] = column
        self._age_N[:] = ages
        self._next = int(state["next"])
        self._episodes = deque((int(start), int(length)) for start, length in state["episodes"])
        self._num_steps = sum(length for _, length in self._episodes)
        self._starts_and_ends = None
        self._last_obs = state["last_obs"]
        self._broken_off.clear()
        self._broken_in = -1
        set_rng_state(self._rng, state["rng"])


def with_zeros(array: NumpyArray, size: int) -> NumpyArray:
    """Return an array with its last axis padded with zeros up to a length."""
    missing = size - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)]) if missing > 0 else array
