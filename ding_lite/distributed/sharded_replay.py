"""A prioritized replay with a shard on each collector (Ape-X, arXiv:1803.00933).

Each collector owns a shard, a `PrioritizedReplay`, and adds to it without a message. A learner
samples from all of them, from each shard in proportion to its sum of priorities. The sums are
known from previous answers, and are requested again when they are old. Each answer holds the
shard's current sum, and importance weights use the actual probabilities.

A lock is held only while a shard draws and copies, so collectors continue while a learner learns,
and sampled transitions may be overwritten before their new priorities arrive. Each transition has
a serial that is never reused, and each process of a shard has its own incarnation number. So the
shard recognises and skips updates of transitions that are gone.
"""

from __future__ import annotations

import math
import operator
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from ding_lite.clock import Deadline
from ding_lite.distributed.server import new_incarnation
from ding_lite.distributed.shards import (
    ANSWER_S,
    Asked,
    Block,
    PendingPriorities,
    ShardAnswer,
    ShardedTransitions,
    Shards,
    Update,
    count_of,
)
from ding_lite.distributed.topics import COLLECTED, ENV_STEP
from ding_lite.errors import ConfigError, DeadlineExceeded, kind_of
from ding_lite.parallel.router.group import Group, check_group
from ding_lite.rl.batch import Array, PrioritizedTransitions, Transitions, to_numpy
from ding_lite.rl.replay.prioritized import PrioritizedReplay, check_sampled_by, checked_priorities
from ding_lite.rl.replay.storage import OwnFields, check_keys, layout_of_own, layout_of_spec
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec, check_spec
from ding_lite.settings.rules import check_all, inside, whole

LOOK_S = 0.25
"""Seconds between requests of `wait_for` for shard sizes while collectors report no progress."""
MOST_DRAWN = 1 << 20
"""The most transitions that one request to a shard may ask for."""
BLOCK_BYTES = 1 << 20
"""The most bytes of a block; fewer large batches are requested at a time."""
MOST_WAITING = 32
"""The most batches of new priorities that are kept for the next request."""


class ShardedReplay:
    """The newest transitions of several collectors, sampled as from one replay.

    Every node makes one, with the same arguments. On a collector `add` and `len` use its own shard.
    On a learner `sample`, `update_priorities` and `len` use all shards that can be reached. A lost
    shard is left out, with a warning, and used again when it is back.

    Args:
        group: The nodes that own a shard each; in an elastic job also nodes with these labels that
            join later.
        spec: The environment's spec.
        shard_capacity: Transitions that each shard keeps.
        alpha: 0 samples uniformly, 1 fully in proportion to the priorities; 0.6 is usual.
        beta: The default of `sample`; see `PrioritizedReplay`.
        fields: Additional fields, as in `ReplayBuffer`.
        seed: Seed of the samples; each shard derives its own.
        name: Distinguishes this replay from others of the same nodes.
        prefetch: How many batches are requested at a time, if they are of one size and take less
            than a megabyte. The next ones are requested when half of these are left, so that they
            arrive while the learner learns. More batches cost less each, and are up to 1.5 times
            as many updates old. 0 requests each batch when it is sampled.

    Raises:
        ConfigError: A setting is out of range or of another kind, or this node of a job already
            has a replay of this name.

    Example:
        >>> from ding_lite.distributed import World
        >>> from ding_lite.rl import make_envs
        >>> group = World.current().group("node.*")
        >>> replay = ShardedReplay(group, make_envs("CartPole-v1", 1).spec, shard_capacity=1_000)
        >>> len(replay), replay.capacity
        (0, 1000)
    """

    def __init__(  # noqa: PLR0913 - all but two by name, and few at a time
        self,
        group: Group,
        spec: EnvSpec,
        *,
        shard_capacity: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        fields: OwnFields | None = None,
        seed: int = 0,
        name: str = "replay",
        prefetch: int = 8,
    ) -> None:
        check_all(
            whole(1, shard_capacity=shard_capacity),
            whole(0, prefetch=prefetch),
            inside(0.0, 1.0, beta=beta),
        )
        check_group(group, "group")
        check_spec(spec)
        self.spec = spec
        self.alpha, self.beta = alpha, beta
        self._shard_capacity = shard_capacity
        layout = layout_of_spec(spec) | (own := layout_of_own(fields))
        self._own_names = tuple(own)
        self.num_passed_on = 0
        """New priorities that this node has sent to shards."""
        self.num_skipped = 0
        """New priorities that were skipped, as their transition was gone."""
        self._group, self._router = group, group.router
        self._name = f"ding_lite.sharded.{name}"
        self._id = 1 + zlib.crc32(self._name.encode())  # the same on all nodes
        self._incarnation = new_incarnation()
        self._rng = make_rng(seed, "sharded replay")
        self._block: Block | None = None
        self._coming: tuple[int, list[Asked]] | None = None
        self._new_priorities = PendingPriorities()
        self._lock = threading.RLock()
        self._shards = Shards(group, f"{self._name}.draw", self._draw_from_own)
        self._own: PrioritizedReplay | None = None
        if group.is_member:
            self._own = PrioritizedReplay(
                spec,
                capacity=shard_capacity,
                alpha=alpha,
                beta=beta,
                fields=fields,
                seed=seed + group.rank,
            )
            self._router.register(f"{self._name}.draw", self._draw_from_own, quick=True)
            self._router.register(f"{self._name}.update", self._update_own, quick=True)
            self._router.register(f"{self._name}.clear", self._own.clear)
        is_only_one = self._own is not None and len(group) == 1
        self._is_alone = is_only_one and not self._router.grows
        self._prefetch = 0 if self._is_alone else prefetch
        self._row_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout.values())
        # Collectors publish their step; new sizes are requested when it changes.
        self._steps = self._router.subscribe(COLLECTED, ENV_STEP)

    @property
    def capacity(self) -> int:
        """Transitions of all shards together."""
        return self._shard_capacity * len(self._shards.all)

    # -- on a collector ------------------------------------------------------------------------

    def add(self, transitions: Transitions, *, priority: Array | None = None, **own: Array) -> None:
        """Add transitions to this node's shard; no message is sent.

        Args:
            transitions: The transitions to add, B of them.
            priority: The priority of each, [B]; by default the highest one of the shard. Ape-X's
                collectors compute |TD error|: `mw.add_to(replay, priority=policy.td_errors)`.
            **own: The values of the replay's additional `fields`.

        Raises:
            ConfigError: This node has no shard, or a priority or an additional field is invalid.
            ShapeError: A field does not have the shape of the spec.
            NonFiniteError: A priority is NaN or infinite. Nothing is added then.
        """
        if self._own is None:
            raise ConfigError(
                f"Node {self._router.node_id} has no shard of this replay, so it cannot add to "
                f"it: the shards are on the nodes {[shard.node for shard in self._shards.all]}. "
                f"Let `mw.add_to` run there only: `task.at('collector').use(...)`."
            )
        self._own.add(transitions, priority=priority, **own)

    def __len__(self) -> int:
        # A member that has added nothing may be a learner: only other nodes fill the replay.
        if self._own is not None and len(self._own):
            return len(self._own) + sum(s.size for s in self._shards.all if not s.is_own)
        with self._lock:
            self._shards.update_states()
            return self._shards.num_held

    def clear(self) -> None:
        """Remove all transitions: of this node's shard, or of all shards if it has none.

        Raises:
            PeerLost: A shard cannot be reached.
        """
        if self._own is not None:
            self._own.clear()
            return
        with self._lock:
            self._block = self._coming = None
            for node in self._group.members_now:
                self._router.call(node, f"{self._name}.clear", timeout=ANSWER_S)
            self._shards.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this node: its shard, if it has one, and its generator."""
        return {
            "shard": None if self._own is None else self._own.state_dict(),
            "rng": rng_state(self._rng),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned; updates under way are skipped.

        Raises:
            CheckpointError: It is not the state of such a replay.
        """
        check_keys(state, self.state_dict(), "a ShardedReplay")
        if self._own is not None and state["shard"] is not None:
            self._own.load_state_dict(state["shard"])
        self._incarnation = new_incarnation()
        set_rng_state(self._rng, state["rng"])

    def _draw_from_own(self, count: int, updates: Sequence[Update] = ()) -> ShardAnswer:
        if self._own is None or type(count) is not int or not 0 <= count <= MOST_DRAWN:
            raise ConfigError(
                f"{count!r} transitions cannot be drawn at a time; 0 to {MOST_DRAWN} can."
            )
        return ShardAnswer(self._incarnation, self._update_own(updates), self._own.draw(count))

    def _update_own(self, updates: Sequence[Update]) -> int:
        if not isinstance(updates, list | tuple):  # an array may have billions of rows
            raise ConfigError(f"New priorities are {kind_of(updates)}; a list was expected.")
        count = 0
        for incarnation, serial_B, priority_B in updates:
            if self._own is not None and incarnation == self._incarnation:
                serial_B, priority_B = np.asarray(serial_B, np.int64), np.asarray(priority_B)
                count += self._own.update_serials(serial_B, priority_B)
        return count

    # -- on a learner --------------------------------------------------------------------------

    @property
    def lost(self) -> tuple[int, ...]:
        """The nodes of shards that cannot be reached at the moment."""
        return self._shards.lost

    def wait_for(
        self, size: int, *, until: Callable[[], bool], timeout: float | None = 60.0
    ) -> None:
        """Wait until the shards together hold `size` transitions, `until()`, or the job ends.

        A node that owns a shard does not wait, as it fills the shard itself.

        Raises:
            ConfigError: The topology never connects this node with a node that has a shard.
            DeadlineExceeded: No transition has been added to any shard for `timeout` seconds.
        """
        deadline = Deadline.after(timeout)
        if self._own is not None:
            return
        if fault := self._router._fault_of_topology([shard.node for shard in self._shards.all]):
            raise ConfigError(f"{fault} The shards of this replay are there.")
        held = len(self)
        while held < size and not (until() or self._router._is_ending()):
            seen = self._steps.newest
            self._steps.wait(partial(operator.is_not, seen), timeout=LOOK_S, until=until)
            with self._lock:
                self._shards.refresh()
                now = self._shards.num_held
            if now != held:
                held, deadline = now, Deadline.after(timeout)
            elif deadline.expired:
                raise DeadlineExceeded(
                    f"The shards hold {held:,} of {size:,} transitions, and no transition was "
                    f"added for {timeout:g} s. The shards of the nodes {[*self.lost]} are out of "
                    f"reach. Do the collectors run, with `mw.add_to`?"
                )

    def sample(self, batch_size: int, *, beta: float | None = None) -> ShardedTransitions:
        """Sample transitions of all shards in proportion to their priorities, as torch tensors.

        Args:
            batch_size: The number of transitions; the batch is full even if a shard is lost.
            beta: The degree of correction by the importance weights, 0 to 1.

        Raises:
            ConfigError: The shards hold fewer transitions than that, or `beta` is out of range.
            PeerLost: No shard can be reached.
        """
        with self._lock:
            block = self._block
            if block is None or block.batch_size != batch_size or not len(block):
                block = self._block = self._next_block(batch_size)
            batch = block.take(self.beta if beta is None else beta)
            if self._prefetch and self._coming is None and len(block) <= block.num_batches // 2:
                self._look_ahead(batch_size)
            return batch

    def _next_block(self, batch_size: int) -> Block:
        coming, self._coming = self._coming, None
        if coming is None or coming[0] != batch_size:
            self._check_batch_size(batch_size)
            coming = batch_size, self._ask_for(self._num_rows(batch_size))
        count, parts = self._num_rows(batch_size), self._shards.collect(coming[1])
        while (missing := count - sum(len(share.drawn.serial) for _, share in parts)) > 0:
            # A shard was lost or cleared meanwhile: the others draw its part.
            parts += self._shards.collect(self._ask_for(missing))
        return Block(parts, batch_size, self._rng, self._own_names, self._id)

    def _look_ahead(self, batch_size: int) -> None:
        if any(shard.total > 0.0 for shard in self._shards.all):
            self._coming = batch_size, self._ask_for(self._num_rows(batch_size))

    def _num_rows(self, batch_size: int) -> int:
        """Return how many transitions are requested at a time: whole batches."""
        batch_bytes = batch_size * self._row_bytes
        return batch_size * max(1, min(self._prefetch, BLOCK_BYTES // batch_bytes))

    def _ask_for(self, count: int) -> list[Asked]:
        asked = self._shards.divide(count, self._rng, self._new_priorities.take())
        for question in asked:
            if question.num_updates:
                question.answer.add_done_callback(partial(self._count, question.num_updates))
        return asked

    def _count(self, num_updates: int, answer: Future[Any]) -> None:
        if answer.exception() is None:
            found = answer.result()
            num_updated = found.num_updated if isinstance(found, ShardAnswer) else int(found)
            self.num_skipped += num_updates - num_updated

    def update_priorities(self, batch: PrioritizedTransitions, priority: Array) -> int:
        """Set the priorities of sampled transitions; they are sent with the next request.

        Transitions that were overwritten or cleared since, or are of a former incarnation of their
        shard, are skipped there; `num_skipped` counts them as the answers arrive.

        Returns:
            The number of priorities for shards that can be reached.

        Raises:
            ConfigError: The batch is not from this replay, or a priority is below 0.
            ShapeError: There are not as many priorities as transitions.
            NonFiniteError: A priority is NaN or infinite. Nothing is changed then.
        """
        if not isinstance(batch, ShardedTransitions):
            raise ConfigError(
                f"The batch is {kind_of(batch)}, and does not say which shards it came "
                f"from. Update the replay that has sampled it."
            )
        check_sampled_by(self._id, batch)
        # A copy, as it waits for the next request, and the caller may change its array meanwhile.
        priority_B = checked_priorities(np.array(to_numpy(priority)), len(batch.serial))
        if self._is_alone:
            count = len(batch)
            update = (int(batch.incarnation[0]), batch.serial, priority_B)
            self.num_skipped += count - self._update_own([update])
        else:
            self._new_priorities.put(batch, priority_B)
            gone = [shard.rank for shard in self._shards.all if not shard.is_here]
            count = len(batch) - int(np.isin(batch.shard, gone).sum()) if gone else len(batch)
            if len(self._new_priorities) > MOST_WAITING:
                self._pass_on()
        self.num_passed_on += count
        return count

    def _pass_on(self) -> None:
        """Send the new priorities without a request for draws."""
        for rank, updates in self._new_priorities.take().items():
            shard = self._shards.all[rank]
            if shard.is_own:
                # Not in one statement: an answer may count on another thread meanwhile.
                num_skipped = count_of(updates) - self._update_own(updates)
                self.num_skipped += num_skipped
            elif shard.is_here:
                answer = self._router.ask(shard.node, f"{self._name}.update", updates)
                answer.add_done_callback(partial(self._count, count_of(updates)))

    # -- inside --------------------------------------------------------------------------------

    def _check_batch_size(self, batch_size: int) -> None:
        check_all(whole(1, batch_size=batch_size))
        self._shards.update_states(wait=batch_size > self._shards.num_held)
        if batch_size > self._shards.num_held:  # as known up to FRESH_S seconds ago
            self._shards.refresh()
        held = self._shards.num_held
        if batch_size > held and (held or not self._shards.lost):
            raise ConfigError(
                f"`batch_size` is {batch_size}, but the shards hold {held} transitions. Collect "
                f"more of them before training, or take smaller batches."
            )
