"""Loading a checkpoint while another process saves the next one to the same directory."""

import errno
import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite import middleware as mw
from ding_lite.errors import CheckpointError
from ding_lite.recipes import load_policy
from ding_lite.rl import DQN, Checkpoint, DQNConfig, load_checkpoint, make_envs, save_checkpoint
from ding_lite.rl.checkpoint.folder import Folder
from ding_lite.rl.checkpoint.save_load import LOCK_TIMEOUT_S
from ding_lite.testing import ManualClock, run_step

ROWS = 700_000


def save_number(directory: Path, number: int) -> None:
    """Save a state with a number in the tensors' file and in the last of several others."""
    large = np.zeros(ROWS)
    large[-1000:] = number
    state = {"small": torch.full((5,), float(number)), "large": large}
    save_checkpoint(directory, state, meta={"number": number})


@contextmanager
def writer(directory: Path) -> Iterator[int]:
    """Fork a process that saves until it is killed."""
    save_number(directory, 0)
    child = os.fork()
    if not child:
        try:
            for number in itertools.count(1):
                save_number(directory, number)
        finally:
            os._exit(1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def num_files(directory: Path) -> int:
    return len(list(directory.iterdir()))


def number_of(found: Checkpoint) -> int:
    number: int = found.meta["number"]
    assert (found.state["small"] == number).all()
    assert (found.state["large"][-1000:] == number).all()
    return number


@pytest.mark.procs
@pytest.mark.parametrize("num_loads", [10, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("locks", [True, False])
def test_each_load_gets_one_checkpoint_whole_while_a_run_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool, num_loads: int
) -> None:
    if not locks:  # as on a file system that has none
        monkeypatch.setattr("fcntl.flock", no_locks)
    seen: set[int] = set()
    with writer(tmp_path) as child:
        while len(seen) < 5:  # the other process is up
            seen.add(number_of(load_checkpoint(tmp_path)))
        for _ in range(num_loads):
            seen.add(number_of(load_checkpoint(tmp_path)))
        assert os.waitpid(child, os.WNOHANG) == (0, 0)  # it is still at work
    assert len(seen) > num_loads // 10
    monkeypatch.undo()
    save_checkpoint(tmp_path, {})
    assert num_files(tmp_path) == 2  # the manifest and its tensors: nothing piles up


def no_locks(fd: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_save_leaves_the_files_that_a_reader_needs_to_the_next_save(tmp_path: Path) -> None:
    save_number(tmp_path, 0)
    with Folder(tmp_path) as reader:
        before = set(tmp_path.iterdir())
        save_number(tmp_path, 1)
        assert before < set(tmp_path.iterdir())
        assert reader.size("tensors-00000001.safetensors")
    save_number(tmp_path, 2)
    assert num_files(tmp_path) == len(before)


def test_a_suspended_reader_does_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("ding_lite.rl.checkpoint.folder.ROOM_FOR_READERS", 2**24)
    save_number(tmp_path, 0)
    with Folder(tmp_path):
        for number in range(1, 9):
            save_checkpoint(tmp_path, {"x": np.full(2**20, float(number))})  # 8 MiB
            size = sum(file.stat().st_size for file in tmp_path.iterdir())
            assert size < 2**24 + 3 * 2**23


def test_a_child_that_was_forked_during_a_load_does_not_keep_the_lock(tmp_path: Path) -> None:
    save_number(tmp_path, 0)
    read_end, write_end = os.pipe()
    with Folder(tmp_path):
        child = os.fork()
        if not child:
            os.read(read_end, 1)
            os._exit(0)
    try:
        save_checkpoint(tmp_path, {})
        assert num_files(tmp_path) == 2
    finally:
        os.write(write_end, b"x")
        os.waitpid(child, 0)
        os.close(read_end)
        os.close(write_end)


def test_loading_a_checkpoint_that_is_always_replaced_times_out(tmp_path: Path) -> None:
    clock = ManualClock()
    save_number(tmp_path, 0)
    tries = 0

    def replace(meta: dict[str, Any]) -> None:
        nonlocal tries
        tries += 1
        save_number(tmp_path, meta["number"] + 1)
        for old in sorted(tmp_path.glob("tensors-*"))[:-1]:
            old.unlink()
        next(tmp_path.glob("rows-*")).unlink()  # this try finds a file missing
        save_number(tmp_path, meta["number"] + 2)
        next(tmp_path.glob("rows-*")).unlink()
        clock.advance(LOCK_TIMEOUT_S / 4)

    with pytest.raises(CheckpointError, match="is missing"):
        load_checkpoint(tmp_path, only=lambda meta: replace(meta), clock=clock)
    assert 4 <= tries <= 6


def test_a_policy_is_made_from_one_checkpoint_also_if_its_networks_have_grown_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(hidden: int) -> None:
        with make_envs("CartPole-v1", 1) as envs:
            policy = DQN(envs.spec, DQNConfig(hidden=(hidden,)))
        run_step(mw.checkpoint(policy, tmp_path, every=1))

    def load_and_replace(*args: Any, **kwargs: Any) -> Checkpoint:
        found = load_checkpoint(*args, **kwargs)
        save(16)
        return found

    save(8)
    monkeypatch.setattr("ding_lite.recipes.runs.loading.load_checkpoint", load_and_replace)
    policy = load_policy(tmp_path)
    assert isinstance(policy, DQN)
    assert policy.config.hidden == (8,)
