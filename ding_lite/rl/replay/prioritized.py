"""A replay that samples transitions in proportion to their priorities.

Schaul et al. 2016, "Prioritized Experience Replay" (arXiv:1511.05952), in its proportional form.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from ding_lite.errors import CheckpointError, ConfigError, NonFiniteError, ShapeError, kind_of
from ding_lite.records import register
from ding_lite.rl.batch import Array, NumpyArray, PrioritizedTransitions, Transitions, to_numpy
from ding_lite.rl.replay.storage import OwnFields
from ding_lite.rl.replay.sum_tree import SumTree
from ding_lite.rl.replay.uniform import ReplayBuffer
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.wrong_calls import explained
from ding_lite.settings.rules import check_all, inside, positive

logger = logging.getLogger(__name__)

WARN_AFTER_SAMPLES = 1_000
"""The number of batches without an update of priorities after which a warning is logged."""


@register
@dataclass(frozen=True, slots=True)
class Drawn:
    """Transitions drawn from a replay, with the sums that sampling from several replays needs."""

    fields: dict[str, NumpyArray]
    """The fields of `Transitions`, and the replay's own, [B, ...] each; empty without draws."""
    value: npt.NDArray[np.float64]
    """The priority of each transition to the power of alpha, [B]."""
    serial: npt.NDArray[np.int64]
    """The serial of each transition, [B]."""
    total: float
    """The sum of the values of all transitions in the replay."""
    size: int
    """The number of transitions in the replay."""


class PrioritizedReplay(ReplayBuffer):
    """The newest transitions, sampled in proportion to their priorities.

    A transition of priority p is sampled with probability P = p**alpha / (sum of all p**alpha).
    A new one gets the priority that `add` is given, or the present highest one, so that it is
    sampled soon. Each batch has importance weights, (N P)**-beta divided by the highest of the
    batch, which reduce the bias of this sampling. With a beta of 1 the weighted mean of a batch is
    that of a uniform sample, up to one factor for the whole batch.

    Args:
        spec: The environment's spec, for shapes and types; if None they are those of the first
            transitions.
        capacity: The number of transitions to keep.
        alpha: 0 samples uniformly, 1 fully in proportion to the priorities; 0.5 to 0.7 are usual.
        beta: The default of `sample`. 0.4 is usual at first; increase it to 1 until the end of a
            run: `train(..., beta=linear(0.4, 1.0, steps=...))`.
        offset: Added to each priority, so that a transition with an error of 0 is sampled again.
            With a lower offset this is rarer; 1e-6 to 1e-2 are usual.
        fields: Your own fields, as in a `ReplayBuffer`.
        seed: The seed of sampling.
        fast: Whether numba runs the loops; None uses it if it is installed, True requires it. The
            samples are the same.
        device: The device of the transitions, as in a `ReplayBuffer`; priorities stay on the CPU.

    Raises:
        ConfigError: If a setting is out of range, or the machine has too little memory.
        MissingExtraError: If `fast` is true and numba is not installed.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> replay = PrioritizedReplay(make_envs("CartPole-v1", 1).spec, capacity=50_000)
        >>> replay.alpha, replay.memory_bytes
        (0.6, 3718672)
    """

    @explained
    def __init__(  # noqa: PLR0913 - all but one by name, and few are given at a time
        self,
        spec: EnvSpec | None = None,
        *,
        capacity: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        offset: float = 1e-6,
        fields: OwnFields | None = None,
        seed: int = 0,
        fast: bool | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        check_all(inside(0.0, 1.0, alpha=alpha, beta=beta), positive(offset=offset))
        super().__init__(spec, capacity=capacity, fields=fields, seed=seed, device=device)
        self.alpha = alpha
        self.beta = beta
        self.offset = offset
        self._tree = SumTree(capacity, fast=fast)
        self._samples_without_update = 0
        self._id = 1 + secrets.randbelow(1 << 62)  # also unlike those of other processes

    @property
    def memory_bytes(self) -> int:
        """The size of the full replay, in bytes."""
        return super().memory_bytes + SumTree.bytes_for(self.capacity)

    def add(self, transitions: Transitions, *, priority: Array | None = None, **own: Array) -> None:
        """Add transitions, in place of the oldest ones.

        Args:
            transitions: B transitions.
            priority: The priority of each, [B], 0 or more, such as |TD error|; by default the
                present highest one.
            **own: The values of the replay's own `fields`; see `ReplayBuffer.add`.

        Raises:
            ShapeError: If a field has another shape or kind of numbers than the spec or earlier
                transitions have, or if the number of priorities differs from that of transitions.
            NonFiniteError: If a priority is NaN or infinite. Then nothing is added.
            ConfigError: If a priority is below 0, if an own field is missing or unknown, or if,
                without a spec, the first transitions need more memory than the machine has.
        """
        if priority is not None:
            priority = checked_priorities(np.asarray(to_numpy(priority)), len(transitions))
        with self._lock:
            first, oldest = self._next, self._oldest
            super().add(transitions, **own)
            if first == self._next:
                return
            highest = self._tree.highest or 1.0
            self._set_values(max(first, self._next - self.capacity), self._next, highest)
            if priority is not None:
                self._set_priorities(np.arange(first, self._next), priority)
            # Some were removed early because their frames were; their slots are not yet reused.
            self._set_values(max(oldest, self._next - self.capacity), self._oldest, 0.0)

    def sample(self, batch_size: int, *, beta: float | None = None) -> PrioritizedTransitions:
        """Sample transitions in proportion to their priorities, as torch tensors.

        The sum of all priorities is divided into as many segments as there are transitions to draw,
        and one is drawn from each segment (appendix B.2.1), which keeps the proportions in each
        batch.

        Args:
            batch_size: The number of transitions.
            beta: The degree of correction by the importance weights, 0 to 1.

        Raises:
            ConfigError: If the replay has fewer transitions, or `beta` is out of range.
        """
        with self._lock:
            self._check_batch_size(batch_size)
            self._samples_without_update += 1
            if self._samples_without_update == WARN_AFTER_SAMPLES:
                logger.warning(
                    "%d batches were sampled and no priority updated: put "
                    "mw.update_priorities(replay) behind mw.train, or call update_priorities",
                    WARN_AFTER_SAMPLES,
                )
            slot_B, value_B = self._tree.draw(self._rng.random(batch_size))
            weight_B = importance_weights(value_B, self.beta if beta is None else beta)
            return PrioritizedTransitions(
                **self._gather(slot_B),
                weight=torch.from_numpy(weight_B),
                serial=self._serials_of(slot_B),
                replay_id=self._id,
            )

    def draw(self, count: int) -> Drawn:
        """Draw transitions, with the sums that sampling from several replays needs.

        Args:
            count: The number of transitions; 0 from an empty replay.
        """
        with self._lock:
            tree = self._tree
            count = count if len(self) else 0
            slot_B, value_B = tree.draw(self._rng.random(count)) if count else _NONE
            taken = self._room().gather(slot_B) if count else {}
            return Drawn(
                fields={name: to_numpy(values) for name, values in taken.items()},
                value=value_B,
                serial=self._serials_of(slot_B),
                total=tree.total,
                size=len(self),
            )

    def _serials_of(self, slot_B: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the serials of the transitions in these slots, which are sorted."""
        newest = self._next - 1
        newest_slot = newest % self.capacity
        serial_B = slot_B + (newest - newest_slot)
        serial_B[slot_B.searchsorted(newest_slot, side="right") :] -= self.capacity  # a lap before
        return serial_B

    def update_priorities(self, batch: PrioritizedTransitions, priority: Array) -> int:
        """Set the priorities of sampled transitions, such as |TD error|.

        Transitions that were overwritten or cleared since they were sampled are skipped.

        Args:
            batch: A batch from `sample`, however old.
            priority: [B], each 0 or more. Only their proportions matter.

        Returns:
            The number of these transitions that the replay still has.

        Raises:
            ShapeError: If the number of priorities differs from that of transitions.
            NonFiniteError: If a priority is NaN or infinite. Then nothing is changed.
            ConfigError: If a priority is below 0, or the batch is not from this replay. Then
                nothing is changed.
        """
        if not hasattr(batch, "serial"):
            raise ConfigError(
                f"`batch` is {kind_of(batch)}; one that `sample` of a PrioritizedReplay returned "
                f"was expected."
            )
        check_sampled_by(self._id, batch)
        return self.update_serials(batch.serial, np.asarray(to_numpy(priority)))

    def update_serials(self, serial_B: npt.NDArray[np.int64], priority_B: NumpyArray) -> int:
        """Set the priorities of the transitions of these serials, as `update_priorities` does."""
        _check_count(priority_B, len(serial_B))
        self._samples_without_update = 0
        if not len(priority_B):
            return 0
        with self._lock:
            count = self._set_priorities(serial_B, _as_float32(priority_B))
        if count < 0:
            _refuse(priority_B)
        return count

    def _set_priorities(
        self, serial_B: npt.NDArray[np.int64], priority_B: npt.NDArray[np.float32]
    ) -> int:
        return self._tree.update(
            serial_B,
            priority_B,
            offset=self.offset,
            power=self.alpha,
            first=self._oldest,
            end=self._next,
        )

    def clear(self) -> None:
        """Remove all transitions; later updates of their priorities are ignored."""
        with self._lock:
            super().clear()
            self._tree.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs; see `ReplayBuffer.state_dict`."""
        used = min(self._next, self.capacity)
        return super().state_dict() | {
            "alpha": self.alpha,
            "offset": self.offset,
            "values": self._tree.values[:used],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        Raises:
            CheckpointError: If it is not the state of a replay of this kind, capacity, shapes,
                `alpha` and `offset`.
        """
        with self._lock:
            super().load_state_dict(state)
            self._tree.clear()
            self._tree.write(0, len(state["values"]), state["values"])

    def _check_state(self, state: Mapping[str, Any]) -> None:
        super()._check_state(state)
        for name in ("alpha", "offset"):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"The saved replay has the `{name}` {state[name]!r:.40}, this one "
                    f"{getattr(self, name)}: its priorities are others. Make one with the same."
                )

    def _set_values(self, first: int, last: int, value: float) -> None:
        while first < last:
            start = first % self.capacity
            stop = min(start + last - first, self.capacity)
            self._tree.write(start, stop, value)
            first += stop - start


_NONE = (np.zeros(0, np.int64), np.zeros(0, np.float64))


def importance_weights(chance_B: npt.NDArray[np.float64], beta: float) -> npt.NDArray[np.float32]:
    """Compute importance weights: 1 for the least likely of a batch, lower for the others.

    They are divided by the highest of the batch, not of the whole replay: its least likely
    transition is hardly ever drawn, and if its error is 0, all other weights would be close to 0.
    """
    if not 0.0 <= beta <= 1.0:
        check_all(inside(0.0, 1.0, beta=beta))
    ratio_B: npt.NDArray[np.float32] = chance_B.astype(np.float32)
    ratio_B /= ratio_B.min()
    return np.power(ratio_B, np.float32(-beta), out=ratio_B)


def check_sampled_by(replay_id: int, batch: PrioritizedTransitions) -> None:
    if batch.replay_id not in (0, replay_id):
        raise ConfigError(
            "`batch` was sampled by another replay; one of this replay was expected. Place "
            "`update_priorities(replay)` directly behind the `train` with the same replay: "
            "`ctx.train_data` holds the last batch only. No priority has been changed."
        )


def checked_priorities(priority_B: NumpyArray, count: int) -> npt.NDArray[np.float32]:
    """Return `count` priorities as float32, checked to be finite and not below 0."""
    _check_count(priority_B, count)
    single_B = _as_float32(priority_B)
    if not ((single_B >= 0.0) & (single_B < np.inf)).all():
        _refuse(priority_B)
    return single_B


def _as_float32(priority_B: NumpyArray) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # large numbers become infinite, which is refused
        return priority_B.astype(np.float32, copy=False)


def _check_count(priority_B: NumpyArray, count: int) -> None:
    if priority_B.shape != (count,):
        raise ShapeError(
            f"`priority` has shape {priority_B.shape}; one number for each of the {count} "
            f"transitions was expected."
        )
    if priority_B.dtype.kind not in "fiub":
        raise ConfigError(f"`priority` is of {priority_B.dtype}; real numbers were expected.")


def _refuse(priority_B: NumpyArray) -> NoReturn:
    single_B = _as_float32(priority_B)
    row = int((~(single_B >= 0.0) | (single_B == np.inf)).argmax())
    found = f"`priority` {row} of {len(priority_B)} is {priority_B[row]}"
    if priority_B[row] < 0.0:
        raise ConfigError(
            f"{found}; 0 or more was expected. Take the absolute value of an error. No priority "
            f"has been changed."
        )
    raise NonFiniteError(
        f"{found}; a finite number was expected, up to 3.4e38. No priority has been changed. Look "
        f"at the loss of the update that it comes from, and lower the learning rate."
    )
