"""The shards of a replay, seen from one node, and the batches that are drawn from them.

A request holds new priorities of earlier draws, and the number of transitions to draw. The answer
holds the transitions, and the shard's size and sum, so sampling needs no other requests. A shard
that is lost, or does not answer in time, is left out until it has answered a greeting.

A request costs nearly as much for a hundred transitions as for a thousand: a round trip, and two
switches of threads on the collector. So a learner requests several batches at a time, a `Block`,
and sends new priorities with the next request, from the `PendingPriorities`.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout, wait as wait_for_all
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ding_lite.clock import SYSTEM_CLOCK, Deadline
from ding_lite.errors import CodecError, ConfigError, PeerLost, RemoteError
from ding_lite.parallel.router.group import Group
from ding_lite.records import register
from ding_lite.rl.batch import Array, NumpyArray, PrioritizedTransitions
from ding_lite.rl.replay.prioritized import Drawn, importance_weights
from ding_lite.rl.replay.storage import FIELDS

logger = logging.getLogger(__name__)

FRESH_S = 0.1
"""Seconds for which a known sum of a shard's priorities is used to divide draws."""
ANSWER_S = 5.0
"""Seconds after which a shard without an answer is left out."""

Update: TypeAlias = tuple[int, NumpyArray, NumpyArray]
"""New priorities for a shard: its incarnation, serials and priorities."""


@register(name="ding_lite.Share")
@dataclass(frozen=True, slots=True)
class ShardAnswer:
    """The answer of a shard to a request."""

    incarnation: int
    num_updated: int
    """How many new priorities were applied, as the shard still holds their transitions."""
    drawn: Drawn


@dataclass
class Shard:
    """The last known state of one shard."""

    rank: int
    node: int
    is_own: bool
    is_here: bool = False
    """Whether it has answered, and was not lost since."""
    size: int = 0
    total: float = 0.0
    greeting: Future[Any] | None = None
    """The answer that will show that it is back."""


@dataclass(frozen=True)
class Asked:
    """A request to a shard under way."""

    shard: Shard
    count: int
    """How many draws the shard was asked for."""
    expected: float
    """The mean number of draws of the shard, in proportion to the known sums of all."""
    num_updates: int
    """How many new priorities the request holds."""
    answer: Future[Any]


class Shards:
    """The shards of a replay, seen from one node."""

    def __init__(
        self, group: Group, name: str, draw_own: Callable[[int, Sequence[Update]], ShardAnswer]
    ) -> None:
        self._group = group
        self._router = group.router
        self._name = name
        self._draw_own = draw_own
        own = self._router.node_id
        self.all = [Shard(rank, node, node == own) for rank, node in enumerate(group.members)]
        """The shards by rank."""
        self._known_at = -np.inf

    @property
    def lost(self) -> tuple[int, ...]:
        return tuple(s.node for s in self.all if not (s.is_here or s.is_own))

    @property
    def num_held(self) -> int:
        """The transitions in the shards that can be reached, as last known."""
        return sum(shard.size for shard in self.all)

    def update_states(self, *, wait: bool = False) -> None:
        """Greet new, restarted and joined shards, which get the next ranks; update known states."""
        self._greet()
        if wait:
            wait_for_all([s.greeting for s in self.all if s.greeting and not s.is_here], ANSWER_S)
        for shard in self.all:
            if shard.greeting is None or not shard.greeting.done():
                continue
            greeting, shard.greeting = shard.greeting, None
            if greeting.exception() is None:
                _note(shard, greeting.result())
                logger.info("took up the shard of node %d", shard.node)
            elif not isinstance(greeting.exception(), PeerLost | RemoteError):
                greeting.result()
            # Else it is gone again, or its `main` has not made the shard yet.
        if self._known_at + FRESH_S < SYSTEM_CLOCK.now():
            self.collect(self._ask(np.zeros(len(self.all), np.int64), {}))

    def refresh(self) -> None:
        """Update the known states, even if they are fresh."""
        self._known_at = -np.inf
        self.update_states()

    def divide(
        self, count: int, rng: np.random.Generator, updates: Mapping[int, Sequence[Update]]
    ) -> list[Asked]:
        """Request draws from the shards, in proportion to their sums.

        As in a sum tree, the total sum is cut into `count` equal parts, and a random point is drawn
        in each part. The shard in which the point lies gets the draw.
        """
        self.update_states()
        total_K = np.array([shard.total for shard in self.all])
        ends_K = total_K.cumsum()
        if not ends_K[-1] > 0.0:
            raise PeerLost(
                f"No shard of this replay that holds anything can be reached. The shards are on "
                f"the nodes {[shard.node for shard in self.all]}; out of reach are those of "
                f"{[*self.lost]}. With `mw.wait_for` a learner waits for them to come back."
            )
        place_B = (np.arange(count) + rng.random(count)) * (ends_K[-1] / count)
        last = np.flatnonzero(total_K)[-1]
        rank_B = np.minimum(ends_K.searchsorted(place_B, side="right"), last)
        count_K = np.bincount(rank_B, minlength=len(total_K))
        return self._ask(count_K, updates, expected_K=total_K / ends_K[-1] * count)

    def _ask(
        self,
        count_K: npt.NDArray[np.int64],
        updates: Mapping[int, Sequence[Update]],
        expected_K: npt.NDArray[np.float64] | None = None,
    ) -> list[Asked]:
        asked = []
        for rank, shard in enumerate(self.all):
            count, news = int(count_K[rank]), [*updates.get(rank, ())]
            if shard.is_own:
                answer = Future[Any]()
                answer.set_result(self._draw_own(count, news))
            elif shard.is_here:
                answer = self._router.ask(shard.node, self._name, count, news)
            else:
                continue
            expected = 0.0 if expected_K is None else float(expected_K[rank])
            asked.append(Asked(shard, count, expected, count_of(news), answer))
        return asked

    def collect(self, asked: Sequence[Asked]) -> list[tuple[Asked, ShardAnswer]]:
        """Wait for answers; leave out shards that are lost or take too long."""
        deadline = Deadline.after(ANSWER_S, SYSTEM_CLOCK)
        shares = []
        for question in asked:
            shard = question.shard
            try:
                share = deadline.result_of(question.answer)
            except PeerLost as error:
                _lose(shard, str(error))
            except RemoteError as error:
                if not error.is_not_registered:
                    raise
                _lose(shard, "its process is a new one, which has not made it yet")
            except FutureTimeout:
                _lose(shard, f"it has not answered within {ANSWER_S:g} s", question.answer)
            else:
                _note(shard, share, question.count)
                shares.append((question, share))
        self._known_at = SYSTEM_CLOCK.now()
        return shares

    def _greet(self) -> None:
        members, known = self._group.members_now, {shard.node for shard in self.all}
        joined = [node for node in members if node not in known]
        self.all += [Shard(rank, node, False) for rank, node in enumerate(joined, len(known))]
        peers = self._router.peers if self.lost else ()
        for shard in self.all:
            if shard.node not in members:
                _lose(shard, "no node of the group has this number")
            elif shard.node in peers and not shard.is_here and shard.greeting is None:
                shard.greeting = self._router.ask(shard.node, self._name, 0, [])


def _note(shard: Shard, share: object, count: int | None = None) -> None:
    """Note the state of a shard by its answer, after `count` draws if that is known."""
    match share:
        case ShardAnswer(drawn=Drawn(serial=np.ndarray() as drawn, total=float(total), size=size)):
            is_sum = type(size) is int and size >= 0 and 0.0 <= total < np.inf
            if is_sum and (count in (None, len(drawn)) or not size):
                shard.is_here, shard.size, shard.total = True, size, total
                return
    raise CodecError(  # else a learner would ask again for ever
        f"The shard of node {shard.node} has sent a malformed answer, or fewer transitions than "
        f"were drawn. Does that node run the same program, with the same version of ding_lite?"
    )


def _lose(shard: Shard, why: str, late: Future[Any] | None = None) -> None:
    if shard.is_here:
        shard.is_here, shard.size, shard.total = False, 0, 0.0
        shard.greeting = late  # its late answer will show that the shard is back
        logger.warning("left out the shard of node %d until it is back: %s", shard.node, why)


def count_of(updates: Sequence[Update]) -> int:
    return sum(len(priority_B) for _, _, priority_B in updates)


# -- batches -------------------------------------------------------------------------------


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


class PendingPriorities:
    """New priorities that are kept until the next request to their shards."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[ShardedTransitions, NumpyArray]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, batch: ShardedTransitions, priority_B: NumpyArray) -> None:
        self._waiting.append((batch, priority_B))

    def take(self) -> dict[int, list[Update]]:
        """Take them all; return the updates for each shard, by rank."""
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
