"""Storage of stacked observations that stores each frame once.

An image observation is a stack of the newest frames of its environment. The next observation has
all of them but the oldest, and one new frame. So a replay that stores `obs` and `next_obs` directly
stores each frame 2 x stack times. Here each frame is stored once, and an observation is a row of
frame indices.

A transition does not contain its environment, its position in time, or the env steps that it spans.
Therefore frames are recognised by their content: a hash finds a recent frame that may be equal, and
a comparison of all bytes decides. Observations that share no frames take more memory, but they are
always restored exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ding_lite.errors import CheckpointError
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.replay.outputs import Outputs
from ding_lite.rl.seeding import make_rng

ADD_AT_ONCE = 32
"""The number of observations hashed and compared at a time, which fit into a processor's cache."""
READ_AT_ONCE = 64
"""The number of observations gathered at a time, so that the frames that `obs` and `next_obs` share
are read from memory once."""
SPARE_FRAMES = 512
"""The number of frames beyond the transitions and an eighth of the capacity. Each episode has one
frame more than transitions, and a frame that is recognised later keeps its row until then."""


class Frames:
    """The observations of a replay's transitions.

    The first axis of `obs_shape` has the frames, the oldest first. With a `stack` of 1 an
    observation that is `next_obs` of one transition and `obs` of another is still stored once.
    """

    def __init__(
        self, obs_shape: tuple[int, ...], dtype: np.dtype[Any], *, stack: int, capacity: int
    ) -> None:
        self._obs_shape = obs_shape
        self._stack = stack
        self._capacity = capacity
        frame_shape = (obs_shape[0] // stack, *obs_shape[1:])
        self._num_frames = _num_frames(stack, capacity)
        # The number of newest frames that are recognised. Environments take turns, so it must be
        # several times their number. A frame that is recognised late is overwritten soon, so the
        # number is higher only if frames run out.
        self._window = self._num_frames - capacity - 4 * stack
        self._widest = max(self._window, self._num_frames // 2)
        room = (self._num_frames - self._widest) // (2 * stack)
        self._at_once = max(1, min(ADD_AT_ONCE, room))

        # Frames are numbered in order, and number n is stored in row n % num_frames.
        self._next_number = 0
        self._frames = np.zeros((self._num_frames, *frame_shape), dtype=dtype)
        self._words = _as_words(self._frames)
        # The newest transition with each frame; if the frame is overwritten, it and all before go.
        self._last_serial = np.full(self._num_frames, -1, dtype=np.int64)
        # By slot: the rows of the frames of `obs`, then of those of `next_obs`.
        self._rows = np.zeros((capacity, 2 * stack), dtype=np.int32)

        self._number_of_hash: dict[int, int] = {}
        self._hash_of_row = np.zeros(self._num_frames, dtype=np.uint64)
        self._first_hashed = 0
        factors = make_rng(0, "frames").integers(1 << 62, size=self._words.shape[1:])
        self._factors = (2 * factors + 1).astype(np.uint64)  # odd, so that no bit of a word is lost
        self._outputs = Outputs()

    @staticmethod
    def bytes_for(
        obs_shape: tuple[int, ...], dtype: np.dtype[Any], *, stack: int, capacity: int
    ) -> int:
        frame_bytes = math.prod(obs_shape) // stack * dtype.itemsize
        frames = _num_frames(stack, capacity) * (frame_bytes + 8 + 8)
        return frames + capacity * 2 * stack * np.dtype(np.int32).itemsize

    def add(self, serial: int, obs: NumpyArray, next_obs: NumpyArray) -> int:
        """Store the observations of transitions with consecutive serials, from `serial` on.

        Return the serial of the oldest transition that still has all of its frames.
        """
        oldest = 0
        for start in range(0, len(obs), self._at_once):
            few = slice(start, start + self._at_once)
            serial_B = serial + np.arange(len(obs))[few]
            oldest = max(oldest, self._add(serial_B, obs[few], side=0))
            oldest = max(oldest, self._add(serial_B, next_obs[few], side=1))
            self._forget_hashes()
        num_held, used = serial + len(obs) - oldest, min(self._next_number, self._num_frames)
        if used > 1.2 * num_held + self._num_frames - self._capacity:
            self._window = self._widest
        return oldest

    def gather(self, slot_B: npt.NDArray[np.int64]) -> tuple[NumpyArray, NumpyArray]:
        """Return the observations of transitions, `obs` and `next_obs`, [B, ...] each."""
        shape = (len(slot_B), self._stack, *self._frames.shape[1:])
        obs = self._outputs.empty(shape, self._frames.dtype)
        next_obs = self._outputs.empty(shape, self._frames.dtype)
        for start in range(0, len(slot_B), READ_AT_ONCE):
            few = slice(start, start + READ_AT_ONCE)
            row_BF = self._rows.take(slot_B[few], axis=0)
            self._frames.take(row_BF[:, : self._stack], axis=0, out=obs[few], mode="clip")
            self._frames.take(row_BF[:, self._stack :], axis=0, out=next_obs[few], mode="clip")
        return obs.reshape(-1, *self._obs_shape), next_obs.reshape(-1, *self._obs_shape)

    def _add(self, serial_B: NumpyArray, observations: NumpyArray, *, side: int) -> int:
        """Find or store the frames of observations; return the oldest serial still complete."""
        frames = np.ascontiguousarray(observations, dtype=self._frames.dtype)
        frames = frames.reshape(-1, *self._frames.shape[1:])
        words = _as_words(frames)
        hash_F = self._hash(words)

        numbers: list[int] = []
        new: list[int] = []
        for index, one_hash in enumerate(hash_F.tolist()):
            number = self._number_of_hash.get(one_hash)
            if number is None:
                number = self._next_number + len(new)
                self._number_of_hash[one_hash] = number
                new.append(index)
            numbers.append(number)
        row_F = np.array(numbers) % self._num_frames
        oldest = self._keep(frames, hash_F, new)

        differs = self._words.take(row_F, axis=0) != words
        if differs.any():  # equal hashes of different frames
            others = np.flatnonzero(differs.any(axis=1)).tolist()
            row_F[others] = (self._next_number + np.arange(len(others))) % self._num_frames
            oldest = max(oldest, self._keep(frames, hash_F, others))

        row_BF = row_F.reshape(len(serial_B), self._stack)
        columns = slice(side * self._stack, (side + 1) * self._stack)
        self._rows[serial_B % self._capacity, columns] = row_BF
        self._last_serial[row_BF] = serial_B[:, None]  # the last one, the newest, stays
        return oldest

    def _keep(self, frames: NumpyArray, hash_F: NumpyArray, new: list[int]) -> int:
        """Write frames over the oldest ones; return the oldest serial still complete."""
        if not new:
            return 0
        numbers = range(self._next_number, self._next_number + len(new))
        row_F = np.array(numbers) % self._num_frames
        oldest = int(self._last_serial[row_F].max()) + 1
        self._frames[row_F] = frames[new]
        self._hash_of_row[row_F] = hash_F[new]
        self._number_of_hash.update(zip(hash_F[new].tolist(), numbers, strict=True))
        self._next_number = numbers.stop
        return oldest

    def _hash(self, words: NumpyArray) -> npt.NDArray[np.uint64]:
        hash_F: npt.NDArray[np.uint64] = np.einsum("fw,w->f", words, self._factors, dtype=np.uint64)
        return hash_F

    def _forget_hashes(self) -> None:
        numbers = range(self._first_hashed, max(0, self._next_number - self._window))
        if numbers:
            hash_F = self._hash_of_row[np.array(numbers) % self._num_frames]
            for number, one_hash in zip(numbers, hash_F.tolist(), strict=True):
                if self._number_of_hash.get(one_hash) == number:
                    del self._number_of_hash[one_hash]
            self._first_hashed = numbers.stop

    def state_dict(self) -> dict[str, Any]:
        """Return the state; its arrays are the used memory itself, not copies."""
        used = min(self._next_number, self._num_frames)
        return {
            "frames": self._frames[:used],
            "last_serial": self._last_serial[:used],
            "rows": self._rows,
            "next_number": self._next_number,
            "window": self._window,
            "first_hashed": self._first_hashed,
        }

    @staticmethod
    def saved_shape_and_type(state: Mapping[str, Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        first, *rest = state["frames"].shape[1:]
        return (first * (state["rows"].shape[1] // 2), *rest), state["frames"].dtype

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        frames, used = state["frames"], min(state["next_number"], self._num_frames)
        if frames.shape != (used, *self._frames.shape[1:]):
            raise CheckpointError(
                f"The saved replay has {len(frames)} frames of shape {frames.shape[1:]}; {used} "
                f"of shape {self._frames.shape[1:]} were expected. Was it saved with another "
                f"`frame_stack`?"
            )
        self._frames[:used] = frames
        self._last_serial[:used] = state["last_serial"]
        self._last_serial[used:] = -1
        self._rows[:] = state["rows"]
        self._next_number, self._window = int(state["next_number"]), int(state["window"])
        # A window that has just widened reaches back to frames without hashes.
        first = int(state.get("first_hashed", 0))
        self._first_hashed = max(0, first, self._next_number - self._window)

        self._number_of_hash.clear()
        numbers = range(self._first_hashed, self._next_number)
        row_F = np.array(numbers, dtype=np.int64) % self._num_frames
        self._hash_of_row[row_F] = self._hash(self._words[row_F])
        self._number_of_hash.update(zip(self._hash_of_row[row_F].tolist(), numbers, strict=True))


def _num_frames(stack: int, capacity: int) -> int:
    return capacity + capacity // 8 + SPARE_FRAMES + 4 * stack


def _as_words(frames: NumpyArray) -> NumpyArray:
    """View frames as rows of the widest integers that divide their size."""
    rows = frames.reshape(len(frames), -1).view(np.uint8)
    width = next(width for width in (8, 4, 2, 1) if rows.shape[1] % width == 0)
    return rows.view(f"u{width}")
