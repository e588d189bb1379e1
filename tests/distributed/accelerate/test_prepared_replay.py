"""A replay behind a data loader that Accelerate has prepared, in a single process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from ding_lite.distributed import Processes
from ding_lite.distributed.accelerate import prepared_replay
from ding_lite.errors import ConfigError, kind_of
from ding_lite.rl import EpisodeBuffer, PrioritizedReplay, ReplayBuffer, make_envs
from tests.evolution.conftest import some_transitions

SPEC = make_envs("CartPole-v1", 1).spec


@pytest.fixture(scope="module")
def processes() -> Processes:
    return Processes()


@pytest.fixture
def replay() -> ReplayBuffer:
    replay = ReplayBuffer(SPEC, capacity=5_000, seed=3)
    replay.add(some_transitions(SPEC, 3_000))
    return replay


def test_a_prepared_loader_over_the_replay_gives_what_the_replay_holds(
    processes: Processes, replay: ReplayBuffer
) -> None:
    prepared = processes.prepare(replay)
    assert isinstance(prepared.loader, DataLoader)
    assert isinstance(prepared.loader.dataset, IterableDataset)
    assert prepared.loader in processes.accelerator._dataloaders
    held = {tuple(obs) for obs in some_transitions(SPEC, 3_000).obs.tolist()}
    rewards: list[float] = []
    for size in (128, 1, 300, 2_000, 64):
        batch = prepared.sample(size)
        assert len(batch) == size
        assert {tuple(obs) for obs in batch.obs.tolist()} <= held
        assert batch.action.dtype == torch.int64
        rewards += batch.reward.tolist()
    assert len({*rewards}) > 1_300  # of 2,493 draws from 3,000 some 1,700 differ


def test_own_fields_pass_through_the_loader(processes: Processes) -> None:
    prepared = processes.prepare(
        ReplayBuffer(SPEC, capacity=1_000, fields={"log_prob": ((), np.float32)})
    )
    added = some_transitions(SPEC, 500)
    prepared.add(added, log_prob=2.0 * np.asarray(added.reward))
    for size in (64, 32):
        batch = prepared.sample(size)
        assert torch.as_tensor(batch.extra["log_prob"]).tolist() == (2.0 * batch.reward).tolist()


def test_batches_of_one_block_do_not_overlap(processes: Processes, replay: ReplayBuffer) -> None:
    prepared = processes.prepare(replay)
    one, two = prepared.sample(128), prepared.sample(128)
    first, second = torch.as_tensor(one.obs), torch.as_tensor(two.obs)
    assert first.data_ptr() != second.data_ptr()
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_new_transitions_are_sampled_two_blocks_later_at_the_latest(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_replay, "BLOCK_BATCHES", 1)
    prepared = processes.prepare(ReplayBuffer(SPEC, capacity=100))
    old, new = some_transitions(SPEC, 100, seed=1), some_transitions(SPEC, 100, seed=2)
    prepared.add(old)
    prepared.sample(64)
    prepared.add(new)
    prepared.sample(64)
    newest = {tuple(obs) for obs in new.obs.tolist()}
    assert all(tuple(obs) in newest for obs in prepared.sample(64).obs.tolist())


def test_a_replay_with_few_transitions_can_be_sampled(processes: Processes) -> None:
    prepared = processes.prepare(ReplayBuffer(SPEC, capacity=1_000))
    with pytest.raises(ConfigError, match="holds 0 transitions"):
        prepared.sample(8)
    prepared.add(some_transitions(SPEC, 16))
    assert len(prepared.sample(16)) == 16
    with pytest.raises(ConfigError, match="holds 16 transitions"):
        prepared.sample(17)
    prepared.add(some_transitions(SPEC, 100))
    assert (len(prepared), prepared.capacity) == (116, 1_000)
    assert len(prepared.sample(100)) == 100


def test_preparing_leaves_the_accelerator_as_it_was_and_torchs_generator_alone(
    processes: Processes, replay: ReplayBuffer
) -> None:
    before = torch.get_rng_state()
    prepared = processes.prepare(replay)
    prepared.sample(16)
    assert torch.equal(torch.get_rng_state(), before)
    assert processes.accelerator.dataloader_config.dispatch_batches is None


def test_a_prepared_replay_is_saved_as_the_replay_that_it_is(
    processes: Processes, replay: ReplayBuffer
) -> None:
    prepared = processes.prepare(replay)
    prepared.sample(8)
    state = prepared.state_dict()
    other = processes.prepare(ReplayBuffer(SPEC, capacity=5_000))
    other.load_state_dict(state)
    fresh = ReplayBuffer(SPEC, capacity=5_000)
    fresh.load_state_dict(state)
    same = other.sample(1_024), fresh.sample(1_024)
    assert torch.equal(*[torch.as_tensor(batch.obs) for batch in same])


@pytest.mark.parametrize(
    "replay",
    [
        PrioritizedReplay(SPEC, capacity=10),
        EpisodeBuffer(SPEC, capacity=10, num_envs=1),
        [],
    ],
    ids=kind_of,
)
def test_what_cannot_be_sampled_ahead_is_refused(processes: Processes, replay: Any) -> None:
    with pytest.raises(ConfigError, match=f"`replay` is {kind_of(replay)}; a ReplayBuffer was"):
        processes.prepare(replay)


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_nothing_is_refused(
    processes: Processes, replay: ReplayBuffer, size: int
) -> None:
    prepared = processes.prepare(replay)
    assert len(prepared.sample(8)) == 8
    with pytest.raises(ConfigError, match=f"`batch_size` is {size}"):
        prepared.sample(size)
