"""Blocks of batches that are drawn from shards at once, and the outbox of new priorities.

A request to a shard costs nearly as much for a hundred transitions as for a thousand: a round trip,
and two switches of threads on the collector. So a learner requests several batches at a time, a
`Block`, and sends new priorities with the next request, from an `Outbox`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ding_lite.distributed.shards import Asked, ShardAnswer, Update
from ding_lite.errors import ConfigError
from ding_lite.records import register
from ding_lite.rl.batch import Array, NumpyArray, PrioritizedTransitions
from ding_lite.rl.replay.prioritized import importance_weights
from ding_lite.rl.replay.storage import FIELDS


@register
@dataclass(frozen=True, slots=True)
class ShardedTransitions(PrioritizedTransitions):
    """Transitions from several shards. A `serial` is unique within its shard."""

    shard: npt.NDArray[np.int64]
    """The shard of each transition, as the rank of its node among the collectors, [B]."""
    incarnation: npt.NDArray[np.int64]
    """The incarnation of that shard's process, [B]."""


class Block:
    """Batches of one size that are drawn together and taken one after the other.

    A shard with n of the draws and sum S draws a transition of value v n * v / S times on average.
    If n is proportional to the sums, this is as in one replay. A shard may have been asked twice,
    for its own draws and for those of a lost one. `parts` are the requests to the shards and their
    answers; `own` names the replay's additional fields, which all shards must have.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Asked, ShardAnswer]],
        batch_size: int,
        rng: np.random.Generator,
        own: Sequence[str] = (),
        replay_id: int = 0,
    ) -> None:
        self.batch_size = batch_size
        self._replay_id = replay_id
        expected: defaultdict[int, float] = defaultdict(float)
        for asked, _ in parts:
            expected[asked.shard.rank] += asked.expected
        parts = [part for part in parts if len(part[1].drawn.serial)]
        sizes = [len(share.drawn.serial) for _, share in parts]
        self.num_batches = sum(sizes) // batch_size
        self._num_taken = 0
        order = _distribute(self.num_batches, batch_size, rng)

        def join(arrays: list[NumpyArray]) -> NumpyArray:
            return np.concatenate(arrays)[order]

        for _, share in parts:
            if share.drawn.fields.keys() != {*FIELDS, *own}:
                raise ConfigError(
                    f"A shard keeps {sorted({*share.drawn.fields} - {*FIELDS})} beside the fields "
                    f"of transitions, this node {sorted(own)}. Make the replay with the same "
                    f"`fields` on all nodes."
                )
        self._own = own
        self._chance = join(
            [
                expected[asked.shard.rank] / share.drawn.total * share.drawn.value
                for asked, share in parts
            ]
        )
        ranks = [asked.shard.rank for asked, _ in parts]
        incarnations = [share.incarnation for _, share in parts]
        self._columns: dict[str, Array] = {
            "serial": join([share.drawn.serial for _, share in parts]),
            "shard": np.repeat(np.array(ranks, np.int64), sizes)[order],
            "incarnation": np.repeat(np.array(incarnations, np.int64), sizes)[order],
        }
        for name in (*FIELDS, *own):
            column = join([share.drawn.fields[name] for _, share in parts])
            self._columns[name] = torch.from_numpy(column)

    def __len__(self) -> int:
        return self.num_batches - self._num_taken

    def take(self, beta: float) -> ShardedTransitions:
        first = self._num_taken * self.batch_size
        rows = slice(first, first + self.batch_size)
        self._num_taken += 1
        columns: dict[str, Any] = {name: column[rows] for name, column in self._columns.items()}
        return ShardedTransitions(
            extra={name: columns.pop(name) for name in self._own},
            **columns,
            weight=torch.from_numpy(importance_weights(self._chance[rows], beta)),
            replay_id=self._replay_id,
        )


def _distribute(
    num_batches: int, batch_size: int, rng: np.random.Generator
) -> slice | npt.NDArray[np.int64]:
    """Return the order of rows that forms consecutive batches.

    The rows are draws from equal parts of the sum of all priorities, in order. Each run of
    `num_batches` rows is dealt at random, one row to each batch. So each batch is spread over the
    whole sum, as if it were drawn alone.
    """
    if num_batches == 1:
        return slice(None)
    rows_BK = np.arange(num_batches * batch_size).reshape(batch_size, num_batches)
    return rng.permuted(rows_BK, axis=1).T.ravel()


class Outbox:
    """New priorities that are kept until the next request to their shards."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[ShardedTransitions, NumpyArray]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, batch: ShardedTransitions, priority_B: NumpyArray) -> None:
        self._waiting.append((batch, priority_B))

    def take(self) -> dict[int, list[Update]]:
        """Empty the outbox; return the updates for each shard, by rank."""
        taken = []
        with suppress(IndexError):  # another thread may put some meanwhile
            while True:
                taken.append(self._waiting.popleft())
        if not taken:
            return {}
        shard_B = np.concatenate([batch.shard for batch, _ in taken])
        incarnation_B = np.concatenate([batch.incarnation for batch, _ in taken])
        serial_B = np.concatenate([batch.serial for batch, _ in taken])
        priority_B = np.concatenate([priority for _, priority in taken])
        found: dict[int, list[Update]] = {}
        for rank in np.unique(shard_B).tolist():
            of_shard_B = shard_B == rank
            for incarnation in np.unique(incarnation_B[of_shard_B]).tolist():
                rows_B = of_shard_B & (incarnation_B == incarnation)
                update = (incarnation, serial_B[rows_B], priority_B[rows_B])
                found.setdefault(rank, []).append(update)
        return found
