"""A replay that samples through a data loader that Hugging Face Accelerate has prepared."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ding_lite.errors import ConfigError, kind_of
from ding_lite.rl.batch import Array, Transitions
from ding_lite.rl.protocols import Prioritized, Replay
from ding_lite.rl.replay.episodes import EpisodeBuffer
from ding_lite.rl.replay.storage import FIELDS

BLOCK_BATCHES = 8
"""Batches that a prepared replay draws at once: more cost less each, and are older."""


class SavedReplay(Replay, Protocol):
    """A replay that can be saved."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def add(self, transitions: Transitions, **own: Array) -> None:
        """Add transitions, and the replay's own fields."""
        ...


class PreparedReplay:
    """A replay that samples through a data loader that Accelerate has prepared.

    Each process samples its own transitions. No batches are sent between processes, in contrast to
    Accelerate's dispatching. The loader samples blocks of several batches, so a batch costs as
    little as without a loader, but lacks the transitions of the last few steps.

    Args:
        accelerator: Accelerate's `Accelerator`.
        replay: A replay that samples uniformly.

    Raises:
        ConfigError: The replay is prioritized, or has episodes instead of transitions.
    """

    is_changed_by_saving = True
    """Whether taking a state changes the next samples: drawn batches are dropped."""

    def __init__(self, accelerator: Any, replay: SavedReplay) -> None:  # noqa: ANN401 - Accelerate comes without types
        is_replay = callable(getattr(replay, "sample", None))
        if not is_replay or isinstance(replay, Prioritized | EpisodeBuffer):
            raise ConfigError(
                f"`replay` is {kind_of(replay)}; a ReplayBuffer was expected, as transitions are "
                f"sampled some batches ahead. Train from another one without `prepare`."
            )
        self.replay = replay
        self.loader = self._prepared(accelerator)
        """The prepared `DataLoader`, which never ends."""
        self._blocks: Iterator[dict[str, Tensor]] | None = None
        self._block: dict[str, Tensor] = {}
        self._first = self._last = 0
        self._rows = 0

    @property
    def capacity(self) -> int:
        """The most transitions that it can hold."""
        return self.replay.capacity

    def __len__(self) -> int:
        return len(self.replay)

    def add(self, transitions: Transitions, **own: Array) -> None:
        """Add transitions, and the replay's own fields, in place of the oldest ones."""
        self.replay.add(transitions, **own)

    def sample(self, batch_size: int) -> Transitions:
        """Sample transitions uniformly, with replacement, on the device that Accelerate has chosen.

        Raises:
            ConfigError: The replay holds fewer transitions than that.
        """
        if batch_size < 1 or self._first + batch_size > self._last:
            self._turn(batch_size)
        first = self._first
        self._first = last = first + batch_size
        own = {name: column[first:last] for name, column in self._block.items()}
        batch = Transitions(*[own.pop(name) for name in FIELDS])
        return batch.with_extra(**own) if own else batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the replay.

        Sampled batches that were not used yet are not part of it, and are dropped here too.
        """
        self._drop_drawn()
        return self.replay.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned."""
        self.replay.load_state_dict(state)
        self._drop_drawn()

    def _drop_drawn(self) -> None:
        self._first = self._last = self._rows = 0
        self._blocks = None

    def _turn(self, batch_size: int) -> None:
        if not 0 < batch_size <= len(self.replay):
            raise ConfigError(
                f"`batch_size` is {batch_size}, but the replay holds {len(self.replay)} "
                f"transitions. Collect more of them before training, or take smaller batches."
            )
        self._rows = max(self._rows, BLOCK_BATCHES * batch_size)
        self._last = 0
        while self._last < batch_size:  # a block that was drawn before may be too small
            if self._blocks is None:
                self._blocks = iter(self.loader)
            self._block = next(self._blocks)
            self._first, self._last = 0, len(self._block["reward"])

    def _draw(self, _: object) -> dict[str, Tensor]:
        rows = self.replay.sample(min(self._rows, len(self.replay)))
        columns = {name: getattr(rows, name) for name in FIELDS} | dict(rows.extra)
        return {name: torch.as_tensor(column) for name, column in columns.items()}

    def _prepared(self, accelerator: Any) -> Any:  # noqa: ANN401 - Accelerate comes without types
        # The dataset yields only counters, as Accelerate reads the items of all processes in each
        # process and drops those of the others. Sampling is done in `collate_fn`.
        loader: DataLoader[Any] = DataLoader(
            _Turns(), batch_size=1, collate_fn=self._draw, generator=torch.Generator()
        )
        config = accelerator.dataloader_config
        before, config.dispatch_batches = config.dispatch_batches, False
        try:
            return accelerator.prepare(loader)
        finally:
            config.dispatch_batches = before


class _Turns(IterableDataset[int]):
    """An endless dataset."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()
