"""Collective operations with Accelerate, in a single process."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from ding_lite import middleware as mw
from ding_lite.distributed import Processes, accelerate
from ding_lite.distributed.accelerate import (
    _check_is_as_started,
    _check_place,
    _pack,
    _unpack,
    digest_of,
    mean_of_states,
)
from ding_lite.errors import CodecError, ConfigError, MissingExtraError, kind_of
from ding_lite.parallel.wire.codec import encode
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


def test_a_single_process_is_the_whole_group(processes: Processes) -> None:
    assert (processes.rank, processes.size, processes.is_main) == (0, 1, True)
    assert processes.gather("numbers", [1.0, 2.0]).tolist() == [[1.0, 2.0]]
    assert processes.broadcast("tree", {"a": (1,)}) == {"a": (1,)}
    processes.check_same("tree", {"a": 1}, generation=0)
    given = torch.ones(2)
    [mean] = processes.mean("weights", [given])
    assert torch.equal(mean, given)
    assert mean is not given


def test_only_weights_are_averaged_and_not_counters(processes: Processes) -> None:
    weight = torch.ones(2)
    state = {"w": {"a": weight}, "rng": np.ones(6, np.uint64), "n": 3, "i": torch.arange(2)}
    [averaged] = mean_of_states(processes, "states", [state])
    assert averaged["w"]["a"] is not weight
    assert averaged["rng"] is state["rng"]
    assert averaged["i"] is state["i"]
    assert averaged["n"] == 3


# -- the prepared replay -------------------------------------------------------------------


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
    monkeypatch.setattr(accelerate, "BLOCK_BATCHES", 1)
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


def test_arguments_in_the_wrong_order_are_refused(processes: Processes) -> None:
    population: Any = [1, 2]
    for make in (mw.average_agents, partial(mw.share_generation, every=1)):
        with pytest.raises(ConfigError, match="`population` is a list"):
            make(population, processes)
    with pytest.raises(ConfigError, match="`accelerator` is a str"):
        Processes("cpu")


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_nothing_is_refused(
    processes: Processes, replay: ReplayBuffer, size: int
) -> None:
    prepared = processes.prepare(replay)
    assert len(prepared.sample(8)) == 8
    with pytest.raises(ConfigError, match=f"`batch_size` is {size}"):
        prepared.sample(size)


# -- what travels --------------------------------------------------------------------------


def test_a_broadcast_is_received_unchanged() -> None:
    tree = {"w": torch.randn(5_000), "n": [1, "two", None], "rng": np.arange(6, dtype=np.uint64)}
    again = _unpack(_pack(encode(tree)))
    assert digest_of(again) == digest_of(tree)


def test_a_damaged_broadcast_is_refused() -> None:
    whole, rng = _pack(encode({"w": torch.randn(5_000), "n": [1, "two"]})), np.random.default_rng(0)
    for length in rng.integers(0, len(whole), size=100).tolist():
        with pytest.raises(CodecError):
            _unpack(whole[:length].clone())
    refused = 0
    for place, byte in zip(rng.integers(0, 80, 200), rng.integers(0, 256, 200), strict=True):
        changed = whole.clone()
        changed[int(place)] = int(byte)
        try:
            _unpack(changed)  # a changed byte may be another value
        except CodecError:
            refused += 1
    assert refused > 50


def test_trees_are_told_apart() -> None:
    base: dict[str, Any] = {"a": torch.zeros(2), "b": [1, 2.0]}
    others: list[Any] = [
        {"a": torch.zeros(2, dtype=torch.float64), "b": [1, 2.0]},
        {"a": torch.tensor([0.0, 1e-8]), "b": [1, 2.0]},
        {"a": torch.zeros(1, 2), "b": [1, 2.0]},
        {"a": torch.zeros(2), "b": [1, 3.0]},
        {"a": torch.zeros(2), "c": [1, 2.0]},
    ]
    assert digest_of(base) == digest_of({"a": torch.zeros(2), "b": [1, 2.0]})
    assert digest_of(base) not in {digest_of(other) for other in others}


# -- how it was started --------------------------------------------------------------------


def test_a_launcher_that_started_one_process_instead_of_two_is_an_error() -> None:
    launched = {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_PORT": "29500"}
    with pytest.raises(ConfigError, match=r"has started one.*torchrun --nproc-per-node 2"):
        _check_is_as_started(1, launched)
    _check_is_as_started(2, launched | {"WORLD_SIZE": "2"})
    _check_is_as_started(1, {"ACCELERATE_MIXED_PRECISION": "no"})  # one was asked for
    _check_is_as_started(1, {"MASTER_PORT": "29500"})
    with pytest.raises(ConfigError, match=r"one of 2 processes.*Accelerator\(cpu=True\)"):
        _check_is_as_started(1, {"WORLD_SIZE": "2"})


def test_the_number_of_processes_is_a_whole_number_or_not_set() -> None:
    _check_is_as_started(1, {"WORLD_SIZE": ""})
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is 'two'; a whole number was expected"):
        _check_is_as_started(1, {"WORLD_SIZE": "two"})


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"WORLD_SIZE": "2"}, "`RANK` is not set, `WORLD_SIZE` is 2"),
        ({"RANK": "1"}, "`RANK` is 1, `WORLD_SIZE` is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "`RANK` is 2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "`MASTER_ADDR` is not set"),
        ({"RANK": "first", "WORLD_SIZE": "2"}, "RANK is 'first'; a whole number was expected"),
    ],
)
def test_a_process_without_a_place_among_the_others_is_refused(
    variables: dict[str, str], found: str
) -> None:
    with pytest.raises(ConfigError, match=found):
        _check_place(variables)
    for usual in ({}, {"RANK": "0"}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a.b"}):
        _check_place(usual)


def test_without_accelerate_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[accelerate\]"):
        Processes()
