"""The replays of other libraries, filled alike: those that are installed.

The extra `bench` has most of them. Tianshou 2 cannot be installed beside the versions of
constraints.txt (it wants an older virtualenv), but runs with them all the same: `pip install
--no-deps tianshou`, then what it imports, until it does. TorchRL's prioritized replay needs a
binary that does not load with that version of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from ding_lite.rl import Transitions

ALPHA, BETA = 0.6, 0.4
SPACES = Box(-np.inf, np.inf, (4,), np.float32), Discrete(2)


@dataclass(frozen=True)
class Peer:
    """A full replay of another library."""

    name: str
    version: str
    add: Callable[[], object]
    sample: Callable[[], object]


@dataclass(frozen=True)
class PrioritizedPeer:
    """A full prioritized replay of another library."""

    name: str
    version: str
    sample: Callable[[], object]
    update: Callable[[np.ndarray, np.ndarray], object]
    """Gives slots new priorities."""


def uniform(full: Transitions, few: Transitions, *, batch_size: int) -> Iterator[Peer]:
    """Fill each replay that samples uniformly, one after the other."""
    makers = {
        "stable-baselines3": _stable_baselines3,
        "cpprb": _cpprb,
        "tianshou": _tianshou,
        "torchrl": _torchrl,
    }
    for name, make in makers.items():
        if is_installed(name):
            add, sample = make(full, few, batch_size)
            yield Peer(name, version_of(name), add, sample)


def prioritized(
    full: Transitions, priorities: np.ndarray, *, batch_size: int
) -> Iterator[PrioritizedPeer]:
    """Fill each replay that samples by priorities, one after the other."""
    makers = {"cpprb": _cpprb_prioritized, "tianshou": _tianshou_prioritized}
    for name, make in makers.items():
        if is_installed(name):
            sample, update = make(full, priorities, batch_size)
            yield PrioritizedPeer(name, version_of(name), sample, update)


def is_installed(name: str) -> bool:
    """Tell whether a package can be imported."""
    return find_spec(name.replace("-", "_")) is not None


def version_of(name: str) -> str:
    """Return a package's name and version, as a row shows it."""
    return f"{name} {metadata.version(name)}"


def _stable_baselines3(full: Transitions, few: Transitions, batch_size: int) -> Any:
    buffers = import_module("stable_baselines3.common.buffers")
    count = len(few)
    buffer = buffers.ReplayBuffer(len(full), *SPACES, device="cpu", n_envs=count)
    rows = len(full) // count
    buffer.observations[:] = full.obs.reshape(rows, count, 4)
    buffer.next_observations[:] = full.next_obs.reshape(rows, count, 4)
    buffer.actions[:] = full.action.reshape(rows, count, 1)
    buffer.dones[:] = full.terminated.reshape(rows, count)
    buffer.full = True
    infos: list[dict[str, Any]] = [{} for _ in range(count)]

    def add() -> None:
        buffer.add(few.obs, few.next_obs, few.action, few.reward, few.terminated, infos)

    return add, lambda: buffer.sample(batch_size)


def _cpprb_columns(transitions: Transitions, part: slice = slice(None)) -> dict[str, Any]:
    return {
        "obs": transitions.obs[part],
        "act": transitions.action[part],
        "rew": transitions.reward[part],
        "next_obs": transitions.next_obs[part],
        "done": transitions.terminated[part],
    }


_CPPRB_SHAPES = {"obs": {"shape": 4}, "act": {}, "rew": {}, "next_obs": {"shape": 4}, "done": {}}


def _cpprb(full: Transitions, few: Transitions, batch_size: int) -> Any:
    buffer = import_module("cpprb").ReplayBuffer(len(full), _CPPRB_SHAPES)
    buffer.add(**_cpprb_columns(full))
    columns = _cpprb_columns(few)
    return lambda: buffer.add(**columns), lambda: buffer.sample(batch_size)


def _cpprb_prioritized(full: Transitions, priorities: np.ndarray, batch_size: int) -> Any:
    cpprb = import_module("cpprb")
    buffer = cpprb.PrioritizedReplayBuffer(len(full), _CPPRB_SHAPES, alpha=ALPHA)
    buffer.add(**_cpprb_columns(full), priorities=priorities)
    return lambda: buffer.sample(batch_size, BETA), buffer.update_priorities


def _tianshou_columns(transitions: Transitions) -> dict[str, Any]:
    return {
        "obs": transitions.obs,
        "act": transitions.action,
        "rew": transitions.reward,
        "terminated": transitions.terminated,
        "truncated": transitions.truncated,
        "obs_next": transitions.next_obs,
    }


def _fill_tianshou(buffer: Any, full: Transitions) -> None:
    """Add one transition, which makes the arrays, and then write to them: all at once."""
    data = import_module("tianshou.data")
    columns = _tianshou_columns(full)
    buffer.add(data.Batch(**{name: column[0] for name, column in columns.items()}, info={}))
    for name, column in columns.items():
        buffer._meta[name][:] = column
    buffer._size = len(full)


def _tianshou(full: Transitions, few: Transitions, batch_size: int) -> Any:
    data = import_module("tianshou.data")
    buffer = data.ReplayBuffer(len(full))
    _fill_tianshou(buffer, full)
    several = data.VectorReplayBuffer(len(full), len(few))
    batch = data.Batch(**_tianshou_columns(few), info=data.Batch())
    return lambda: several.add(batch), lambda: buffer.sample(batch_size)


def _tianshou_prioritized(full: Transitions, priorities: np.ndarray, batch_size: int) -> Any:
    data = import_module("tianshou.data")
    buffer = data.PrioritizedReplayBuffer(len(full), alpha=ALPHA, beta=BETA)
    _fill_tianshou(buffer, full)
    buffer.update_weight(np.arange(len(full)), priorities)
    return lambda: buffer.sample(batch_size), buffer.update_weight


def _torchrl(full: Transitions, few: Transitions, batch_size: int) -> Any:
    data, tensordict = import_module("torchrl.data"), import_module("tensordict")

    def as_tensors(transitions: Transitions) -> Any:
        columns = _cpprb_columns(transitions)
        tensors = {name: torch.as_tensor(column) for name, column in columns.items()}
        return tensordict.TensorDict(tensors, batch_size=[len(transitions)])

    storage = data.LazyTensorStorage(len(full))
    buffer = data.TensorDictReplayBuffer(storage=storage, batch_size=batch_size)
    buffer.extend(as_tensors(full))
    batch = as_tensors(few)
    return lambda: buffer.extend(batch), buffer.sample
