"""A prioritized replay whose parts lie where experience is made (Ape-X, arXiv:1803.00933).

Each collector owns a shard, a `PrioritizedReplay`, and adds to it without a message. A learner
samples from all of them: of each shard as many transitions as its share of the sum of all
priorities asks for. That sum is that of the answers before, unless these are old; what a
shard's sum has become meanwhile is known with its answer, and the importance weights are those
of the probabilities with which the transitions were really drawn.

A lock is held while a shard draws and copies, and no longer: nothing stops while a learner
learns. So what it has sampled may be overwritten before its new priorities come. Each transition
has a number that is never given again, and each life of a shard's process one of its own: an
update for something else than what is there now is recognised, and skipped.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ding_lite.clock import Deadline
from ding_lite.distributed.shards import ANSWER_S, Asked, Shards, Share
from ding_lite.errors import ConfigError, DeadlineExceeded, ShapeError
from ding_lite.parallel.group import Group
from ding_lite.records import register
from ding_lite.rl.batch import Array, NumpyArray, PrioritizedTransitions, Transitions, to_numpy
from ding_lite.rl.prioritized import PrioritizedReplay, refuse_priorities
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import check_all, inside, whole

LOOK_S = 0.25
"""How often `wait_for` asks the shards how far they are, if nobody says that they have grown."""
SWITCH_S = 0.0005
"""How long a thread that adds to a shard keeps the one waiting that answers a learner."""
MOST_DRAWN = 1 << 20
"""How many transitions another node may ask a shard for."""
_FIELDS = tuple(field.name for field in fields(Transitions))


@register
@dataclass(frozen=True, slots=True)
class ShardedTransitions(PrioritizedTransitions):
    """Transitions from several shards. A `serial` is that of its shard."""

    shard: npt.NDArray[np.int64]
    """From which shard each came: the rank of its node among the collectors, [B]."""
    life: npt.NDArray[np.int64]
    """Of which life of that shard's process, [B]."""


class ShardedReplay:
    """The newest transitions of several collectors, sampled as if they lay in one replay.

    Every node makes one, with the same arguments. On a collector `add` and `len` are of its own
    shard. On a learner `sample`, `update_priorities` and `len` are of all shards that can be
    reached: one that dies is left out, with a warning, and taken up again when it is back.

    Args:
        group: The nodes that own a shard each.
        spec: The environment's.
        shard_capacity: Transitions that each shard keeps.
        alpha: 0 samples uniformly, 1 fully in proportion to the priorities; 0.6 is usual.
        beta: For samples that say no beta of their own; see `PrioritizedReplay`.
        seed: Draws the samples; each shard draws others.
        name: Tells it from another one of the same nodes.
        prefetch: Ask for the next batch of the same size before this one is handed over, so
            that it travels while the learner learns. Its priorities are one update older.

    Raises:
        ConfigError: A setting is out of range, or this node has such a replay of this name.

    Example:
        >>> from ding_lite.distributed import World
        >>> from ding_lite.rl import make_envs
        >>> group = World.current().group("node.*")
        >>> replay = ShardedReplay(group, make_envs("CartPole-v1", 1).spec, shard_capacity=1_000)
        >>> len(replay), replay.capacity
        (0, 1000)
    """

    def __init__(
        self,
        group: Group,
        spec: EnvSpec,
        *,
        shard_capacity: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        seed: int = 0,
        name: str = "replay",
        prefetch: bool = True,
    ) -> None:
        check_all(whole(1, shard_capacity=shard_capacity), inside(0.0, 1.0, beta=beta))
        self.spec = spec
        self.alpha, self.beta = alpha, beta
        self.capacity = shard_capacity * len(group)
        """Transitions of all shards together."""
        self.num_passed_on = 0
        """Priorities that this node has sent to shards."""
        self.num_skipped = 0
        """Those of them whose transition was not there any more."""
        self._router = group.router
        self._name = f"ding_lite.sharded.{name}"
        self._life = _new_life()
        self._rng = make_rng(seed, "sharded replay")
        self._pending: tuple[int, list[Asked]] | None = None
        self._lock = threading.RLock()
        self._shards = Shards(group, f"{self._name}.draw", self._draw_from_own)
        self._own: PrioritizedReplay | None = None
        if group.is_member:
            self._own = PrioritizedReplay(
                spec, capacity=shard_capacity, alpha=alpha, beta=beta, seed=seed + group.rank
            )
            self._router.register(f"{self._name}.draw", self._draw_from_own, quick=True)
            self._router.register(f"{self._name}.update", self._update_own, quick=True)
            self._router.register(f"{self._name}.clear", self._own.clear)
            if self._router.has_audience:
                # A thread that is to answer waits as long for a busy one, 5 ms by default.
                sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        self._is_alone = self._own is not None and len(group) == 1
        self._prefetches = prefetch and not self._is_alone
        # Collectors say how far they are at each step; that is when it is worth asking.
        self._steps = self._router.watch("env_step")

    # -- on a collector ------------------------------------------------------------------------

    def add(self, transitions: Transitions) -> None:
        """Keep transitions in this node's shard; no message is sent.

        Raises:
            ConfigError: This node has no shard.
            ShapeError: A field does not have the shape that the spec says.
        """
        if self._own is None:
            raise ConfigError(
                f"Node {self._router.node_id} has no shard of this replay, so it cannot add to "
                f"it: the shards are on the nodes {[*self._nodes()]}. Let `mw.add_to` run there "
                f"only: `task.at('collector').use(...)`."
            )
        self._own.add(transitions)

    def __len__(self) -> int:
        if self._own is not None:
            return len(self._own) + sum(s.size for _, s in self._shards.at_hand if not s.is_own)
        with self._lock:
            self._shards.look()
            return self._shards.num_held

    def clear(self) -> None:
        """Forget all transitions: of this node's shard, or of all where it has none.

        Raises:
            PeerLost: A shard cannot be reached.
        """
        if self._own is not None:
            self._own.clear()
            return
        with self._lock:
            self._pending = None
            for node in self._nodes():
                self._router.call(node, f"{self._name}.clear", timeout=ANSWER_S)
            self._shards.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Return what this node needs to go on: its shard, if it has one, and its generator."""
        return {
            "shard": None if self._own is None else self._own.state_dict(),
            "rng": rng_state(self._rng),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; updates that are under way for what was there before are skipped."""
        if self._own is not None and state["shard"] is not None:
            self._own.load_state_dict(state["shard"])
        self._life = _new_life()
        set_rng_state(self._rng, state["rng"])

    def _draw_from_own(self, count: int) -> Share:
        if self._own is None or type(count) is not int or not 0 <= count <= MOST_DRAWN:
            raise ConfigError(
                f"{count!r} transitions cannot be drawn at a time; 0 to {MOST_DRAWN} can."
            )
        return Share(self._life, self._own.draw(count))

    def _update_own(self, life: int, serial_B: NumpyArray, priority_B: NumpyArray) -> int:
        if self._own is None or life != self._life:
            return 0
        return self._own.update_serials(np.asarray(serial_B, np.int64), np.asarray(priority_B))

    # -- on a learner --------------------------------------------------------------------------

    @property
    def lost(self) -> tuple[int, ...]:
        """The nodes whose shards cannot be reached at the moment."""
        return self._shards.lost

    def wait_for(
        self, size: int, *, until: Callable[[], bool], timeout: float | None = 60.0
    ) -> None:
        """Wait until the shards hold so many transitions together, or `until()`.

        A node that owns a shard does not wait: who else should fill it?

        Raises:
            DeadlineExceeded: Nothing has been added anywhere for `timeout` seconds.
        """
        if self._own is not None:
            return
        held, deadline = len(self), Deadline.after(timeout)
        while held < size and not until():
            seen = self._steps.newest
            self._steps.wait(partial(operator.is_not, seen), Deadline.after(LOOK_S), until)
            with self._lock:
                self._shards.refresh()
                now = self._shards.num_held
            if now != held:
                held, deadline = now, Deadline.after(timeout)
            elif deadline.expired:
                raise DeadlineExceeded(
                    f"The shards hold {held:,} of {size:,} transitions, and none was added for "
                    f"{timeout:g} s. Out of reach are those of the nodes {[*self.lost]}. Do the "
                    f"collectors run, with `mw.add_to`?"
                )

    def sample(self, batch_size: int, *, beta: float | None = None) -> ShardedTransitions:
        """Draw transitions of all shards in proportion to their priorities, as torch tensors.

        Args:
            batch_size: How many; exactly so many come, whatever becomes of a shard.
            beta: How far the weights make up for the priorities, 0 to 1.

        Raises:
            ConfigError: The shards hold fewer transitions than that.
            PeerLost: No shard can be reached.
        """
        with self._lock:
            pending, self._pending = self._pending, None
            if pending is not None and pending[0] == batch_size:
                asked = pending[1]
            else:
                self._check_batch_size(batch_size)
                asked = self._shards.divide(batch_size, self._rng)
            parts = self._shards.collect(asked)
            while (missing := batch_size - sum(len(part.drawn.serial) for _, part in parts)) > 0:
                # A shard has been lost or cleared meanwhile: the others give what it owes.
                parts += self._shards.collect(self._shards.divide(missing, self._rng))
            batch = self._join(
                [part for part in parts if len(part[1].drawn.serial)],
                self.beta if beta is None else beta,
            )
            if self._prefetches and any(shard.total > 0.0 for _, shard in self._shards.at_hand):
                self._pending = batch_size, self._shards.divide(batch_size, self._rng)
            return batch

    def update_priorities(self, batch: PrioritizedTransitions, priority: Array) -> int:
        """Send the shards how surprising each transition was; does not wait for them.

        What was overwritten or cleared since, or was of a former life of its shard, is skipped
        there; `num_skipped` counts it as the answers come.

        Returns:
            How many were passed on to shards that can be reached.

        Raises:
            ConfigError: The batch is not from a sharded replay, or a priority is below 0.
            ShapeError: There are not as many priorities as transitions.
            NonFiniteError: One of them is NaN or infinite. Nothing is changed then.
        """
        if not isinstance(batch, ShardedTransitions):
            raise ConfigError(
                f"The batch is a {type(batch).__name__}, and does not say which shards it came "
                f"from. Update the replay that has sampled it."
            )
        priority_B = to_numpy(priority)
        if priority_B.shape != batch.serial.shape:
            raise ShapeError(
                f"`priority` has shape {priority_B.shape}; one number for each of the "
                f"{len(batch.serial)} transitions of the batch was expected."
            )
        if not ((priority_B >= 0.0) & (priority_B < np.inf)).all():
            refuse_priorities(priority_B)

        count = 0
        # What is of one shard and of one life of it lies together.
        starts = np.flatnonzero(np.diff(batch.life, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(batch)], strict=True):
            shard = self._shards[int(batch.shard[start])]
            if shard.is_here:
                part = slice(start, stop)
                self._pass_on(
                    shard.node, int(batch.life[start]), batch.serial[part], priority_B[part]
                )
                count += int(stop - start)
        self.num_passed_on += count
        return count

    def _pass_on(self, node: int, life: int, serial_B: NumpyArray, priority_B: NumpyArray) -> None:
        def count(answer: Future[Any]) -> None:
            if answer.exception() is None:
                self.num_skipped += len(serial_B) - int(answer.result())

        if node == self._router.node_id:
            self.num_skipped += len(serial_B) - self._update_own(life, serial_B, priority_B)
        else:
            answer = self._router.ask(node, f"{self._name}.update", life, serial_B, priority_B)
            answer.add_done_callback(count)

    # -- inside --------------------------------------------------------------------------------

    def _nodes(self) -> tuple[int, ...]:
        return tuple(self._shards[rank].node for rank in range(len(self._shards)))

    def _check_batch_size(self, batch_size: int) -> None:
        self._shards.look(wait=True)
        held = self._shards.num_held
        if not 0 < batch_size <= held and (held or not self._shards.lost):
            raise ConfigError(
                f"`batch_size` is {batch_size}, but the shards hold {held} transitions. Collect "
                f"more of them before training, or take smaller batches."
            )

    def _join(self, parts: list[tuple[Asked, Share]], beta: float) -> ShardedTransitions:
        sizes = [len(part.drawn.serial) for _, part in parts]
        columns = {
            name: np.concatenate([part.drawn.fields[name] for _, part in parts]) for name in _FIELDS
        }
        return ShardedTransitions(
            **{name: torch.from_numpy(column) for name, column in columns.items()},
            weight=torch.from_numpy(self._weights(parts, beta)),
            serial=np.concatenate([part.drawn.serial for _, part in parts]),
            shard=np.repeat(np.array([asked.rank for asked, _ in parts], np.int64), sizes),
            life=np.repeat(np.array([part.life for _, part in parts], np.int64), sizes),
        )

    def _weights(self, parts: list[tuple[Asked, Share]], beta: float) -> npt.NDArray[np.float32]:
        """Return the importance weights: of the chances that the draws had, over all shards.

        A shard of share s drew a transition of value v from its sum S with the chance s * v / S.
        With shares that are those of the sums that is v / (sum of all), as in one replay. The
        weight is 1 where that chance is lowest of all that are held anywhere.
        """
        at_hand = self._shards.at_hand
        everything = sum(shard.total for _, shard in at_hand) or 1.0
        scale_K = dict.fromkeys(range(len(self._shards)), 1.0 / everything)
        scale_K |= {asked.rank: asked.share / part.drawn.total for asked, part in parts}
        lowest = [s.lowest * scale_K[rank] for rank, s in at_hand if s.lowest > 0.0]
        lowest += [part.drawn.lowest * scale_K[asked.rank] for asked, part in parts]

        chance_B = np.concatenate([scale_K[a.rank] * part.drawn.value for a, part in parts])
        ratio_B = np.divide(chance_B, min(lowest), dtype=np.float32)
        weight_B: npt.NDArray[np.float32] = np.power(ratio_B, np.float32(-beta))
        return np.minimum(weight_B, np.float32(1.0))


def _new_life() -> int:
    return int.from_bytes(os.urandom(7), "little")
