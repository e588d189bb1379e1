"""A replay that samples transitions uniformly."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ding_lite.errors import CheckpointError, ConfigError, kind_of
from ding_lite.io.memory import check_fits
from ding_lite.rl.batch import Array, ExtraTransitions, NumpyArray, Transitions, to_numpy
from ding_lite.rl.host_or_device import is_host, usable_device
from ding_lite.rl.replay.storage import (
    FIELDS,
    DeviceStorage,
    Layout,
    OwnFields,
    Storage,
    check_keys,
    check_kind,
    check_shape,
    layout_of_own,
    layout_of_spec,
    layout_of_values,
    saved_layout,
    take_own,
)
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec, check_spec
from ding_lite.rl.wrong_calls import explained
from ding_lite.settings.rules import check_all, whole

logger = logging.getLogger(__name__)

_get_fields = attrgetter(*FIELDS)
_ARRAYS = {np.ndarray}


class ReplayBuffer:
    """The newest transitions, each of which is equally likely to be sampled.

    It is a ring of slots: adding and sampling are a few copies, whatever the number of transitions.
    The memory is allocated with the first transition. Each frame of images is stored once, however
    many observations contain it, and stacks are assembled at sampling. It is thread-safe, as
    middleware in async mode require.

    Args:
        spec: The environment's spec, for shapes and types; if None they are those of the first
            transitions.
        capacity: The number of transitions to keep. Higher keeps older ones; 1e4 to 1e6 are usual.
            `memory_bytes` is the memory that it takes.
        fields: Your own fields besides those of `Transitions`: the shape and the dtype of one row
            of each, as `{"log_prob": ((), np.float32)}`. `add` takes them by name, and `sample`
            returns them in `batch.extra`.
        seed: The seed of sampling.
        device: The device of the memory, as PyTorch names it. On a GPU samples need no copy to the
            device of the policy, but images are stored whole and take more memory.

    Raises:
        ConfigError: If the capacity is below 1 or needs more memory than the machine has, if a
            field has no usable name, shape or dtype, or if the device does not exist.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> replay = ReplayBuffer(make_envs("CartPole-v1", 1).spec, capacity=50_000)
        >>> len(replay), replay.memory_bytes
        (0, 2800000)
    """

    @explained
    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        capacity: int,
        fields: OwnFields | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self.device = usable_device(device)
        check_all(whole(1, capacity=capacity))
        if spec is not None:
            check_spec(spec)
        self.spec = spec
        self.capacity = capacity
        self._own = layout_of_own(fields)
        self._rng = make_rng(seed, "replay")
        self._lock = threading.RLock()
        # Transitions have serial numbers that are never reused, and serial n is stored in slot
        # n % capacity. The replay has those from `_oldest` to before `_next`.
        self._next = 0
        self._oldest = 0
        self._stack = 1 if spec is None else spec.frame_stack
        self._layout: Layout = {}
        self._usual_types: list[np.dtype[Any]] = []
        self._usual_shapes: list[tuple[int, ...]] = []
        self._usual_count = 0
        self._storage: Storage | DeviceStorage | None = None
        self._has_said_so = False
        if spec is not None:
            self._set_layout(layout_of_spec(spec) | self._own)

    @property
    def memory_bytes(self) -> int:
        """The size of the full replay, in bytes; 0 before the shapes are known."""
        return self._bytes_for(self._layout) if self._layout else 0

    def _bytes_for(self, layout: Layout) -> int:
        if is_host(self.device):
            return Storage.bytes_for(layout, capacity=self.capacity, stack=self._stack)
        return DeviceStorage.bytes_for(layout, capacity=self.capacity)

    def __len__(self) -> int:
        return self._next - self._oldest

    def add(self, transitions: Transitions, **own: Array) -> None:
        """Add transitions, in place of the oldest ones once the replay is full.

        Args:
            transitions: B transitions.
            **own: The values of the replay's own `fields`, [B, ...] each, unless they are in
                `transitions.extra`.

        Raises:
            ShapeError: If a field has another shape or kind of numbers than the spec or earlier
                transitions have.
            ConfigError: If it is a `Step`, if an own field is missing or unknown, or if, without a
                spec, the first transitions need more memory than the machine has.
        """
        try:
            count = len(transitions)
            values: tuple[NumpyArray, ...] = _get_fields(transitions)
        except (AttributeError, IndexError, TypeError) as error:
            raise ConfigError(
                f"`transitions` is {kind_of(transitions)}; Transitions of arrays were expected, "
                f"with a row for each transition. "
                f"`NStep(policy.n_step, policy.gamma, num_envs=...)(step)` makes transitions of "
                f"the Step that `Envs.step` returns."
            ) from error
        if not count:
            return
        if own or self._own or transitions.extra:
            values += take_own({**transitions.extra, **own}, self._own)
        if set(map(type, values)) != _ARRAYS:
            values = tuple(np.asarray(to_numpy(value)) for value in values)
        with self._lock:
            self._add(values, count)

    def _add(self, values: tuple[NumpyArray, ...], count: int) -> None:
        if not self._layout:
            self._set_layout(layout_of_values(values) | self._own)
        self._check(values, count)
        if count > self.capacity:  # the oldest ones would be overwritten at once
            self._next += count - self.capacity
            values = tuple(value[-self.capacity :] for value in values)
            count = self.capacity

        oldest = self._room().write(self._next, values, count)
        self._next += count
        if oldest > max(self._oldest, self._next - self.capacity):
            self._warn_frames_ran_out(self._next - oldest)
        self._oldest = max(self._oldest, oldest)

    def sample(self, batch_size: int) -> Transitions:
        """Sample transitions uniformly, with replacement, as newly allocated torch tensors.

        Raises:
            ConfigError: If the replay has fewer transitions.
        """
        with self._lock:
            self._check_batch_size(batch_size)
            slot_B = self._rng.integers(0, len(self), size=batch_size)
            first = self._oldest % self.capacity
            if first and len(self) < self.capacity:
                slot_B += first
                slot_B %= self.capacity
            taken = self._gather(slot_B)
            return ExtraTransitions(**taken) if self._own else Transitions(**taken)

    def clear(self) -> None:
        """Remove all transitions; serials continue with the next ones."""
        with self._lock:
            self._oldest = self._next

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs.

        The arrays are the replay's own memory, so that saving a large replay does not need the
        memory twice. Save or copy them before adding transitions.
        """
        used = min(self._next, self.capacity)
        return {
            "capacity": self.capacity,
            "next": self._next,
            "oldest": self._oldest,
            "rng": rng_state(self._rng),
            "storage": None if self._storage is None else self._storage.state_dict(used),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        Raises:
            CheckpointError: If it is not the state of a replay of this kind, capacity and shapes.
        """
        self._check_state(state)
        with self._lock:
            if state["storage"] is not None:
                if not self._layout:
                    saved = saved_layout(state["storage"])
                    self._set_layout({name: saved[name] for name in FIELDS} | self._own)
                self._room().load_state_dict(state["storage"])
            set_rng_state(self._rng, state["rng"])
            self._next, self._oldest = int(state["next"]), int(state["oldest"])

    def _check_state(self, state: Mapping[str, Any]) -> None:
        check_keys(state, self.state_dict(), kind_of(self))
        if state["capacity"] != self.capacity:
            raise CheckpointError(
                f"The saved replay has a capacity of {state['capacity']:,}, this one of "
                f"{self.capacity:,}. Make one of the same capacity to go on exactly."
            )
        first, end = state["oldest"], state["next"]
        whole = type(first) is type(end) is int
        if not whole or not 0 <= first <= end or end - first > self.capacity:
            raise CheckpointError(
                f"The saved replay holds the transitions {first!r} to {end!r}, which is impossible "
                f"with a capacity of {self.capacity:,}. Take a checkpoint that is whole."
            )

    def _set_layout(self, layout: Layout) -> None:
        needed = self._bytes_for(layout)
        if is_host(self.device):
            check_fits(needed, what=f"A replay{self._of_env()}", capacity=self.capacity)
        self._layout = layout
        self._usual_types = [dtype for _, dtype in layout.values()]
        megabytes = needed / 1e6
        logger.info("a replay of %d transitions takes %.1f MB when full", self.capacity, megabytes)

    def _room(self) -> Storage | DeviceStorage:
        if self._storage is None:
            layout, capacity = self._layout, self.capacity
            if is_host(self.device):
                self._storage = Storage(layout, capacity=capacity, stack=self._stack)
            else:
                self._storage = DeviceStorage(layout, capacity=capacity, device=self.device)
        return self._storage

    def _check(self, values: tuple[NumpyArray, ...], count: int) -> None:
        if count != self._usual_count:
            self._usual_count = count
            self._usual_shapes = [(count, *shape) for shape, _ in self._layout.values()]
        # Two comparisons of lists, because `add` calls this for every few transitions.
        fits = [value.shape for value in values] == self._usual_shapes
        if not fits or [value.dtype for value in values] != self._usual_types:
            self._refuse_misfits(values, count)

    def _refuse_misfits(self, values: tuple[NumpyArray, ...], count: int) -> None:
        holder = f"this replay{self._of_env()}"
        for value, (field, (shape, dtype)) in zip(values, self._layout.items(), strict=True):
            name = field if field in self._own else f"transitions.{field}"
            check_shape(
                name, value, (count, *shape), f"{holder} keeps", f" for {count} transitions"
            )
            check_kind(name, value, dtype, holder)

    def _check_batch_size(self, batch_size: int) -> None:
        if type(batch_size) is not int or batch_size < 1:
            check_all(whole(1, batch_size=batch_size))
        if batch_size > len(self):
            raise ConfigError(
                f"`batch_size` is {batch_size}, but the replay holds {len(self)} transitions. "
                f"Collect more of them before training, or take smaller batches."
            )

    def _gather(self, slot_B: npt.NDArray[np.int64]) -> dict[str, Any]:
        taken: dict[str, Any] = self._room().gather(slot_B)
        tensors = taken
        if is_host(self.device):
            tensors = {name: torch.from_numpy(rows) for name, rows in taken.items()}
        if self._own:
            tensors["extra"] = {name: tensors.pop(name) for name in self._own}
        return tensors

    def _of_env(self) -> str:
        return "" if self.spec is None else f" for {self.spec.env_id}"

    def _warn_frames_ran_out(self, room: int) -> None:
        if self._has_said_so or room > 0.8 * self.capacity:
            return
        self._has_said_so = True
        logger.warning(
            "a replay for %d transitions has room for %d of them now: their observations share few "
            "frames, as those of short episodes or very many environments do. Is `frame_stack` of "
            "the spec right?",
            self.capacity,
            room,
        )
