"""Checkpoints: when they are written, and when the last good one is left alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from ding_lite import middleware as mw
from ding_lite.errors import CheckpointError, ConfigError, NonFiniteError
from ding_lite.rl.checkpoint import load_checkpoint
from ding_lite.rl.envs import Envs
from ding_lite.rl.policies.dqn import DQN
from ding_lite.rl.replay import ReplayBuffer
from ding_lite.runtime.context import Context
from ding_lite.runtime.task import Task
from ding_lite.testing import run_step


def saved_step(directory: Path) -> int:
    step: int = load_checkpoint(directory).meta["total_step"]
    return step


def test_it_saves_every_so_many_steps_and_at_the_end(policy: DQN, tmp_path: Path) -> None:
    steps: list[int | None] = []

    def note(ctx: Context) -> None:
        exists = (tmp_path / "manifest.json").exists()
        steps.append(saved_step(tmp_path) if exists else None)

    with Task() as task:
        task.use(mw.checkpoint(policy, tmp_path, every=3))
        task.use(note)
        task.run(max_step=8)

    assert steps == [None, None, None, 2, 2, 2, 5, 5]  # it saves behind the step
    assert saved_step(tmp_path) == 7


def test_a_policy_goes_on_from_it_exactly(
    policy: DQN, envs: Envs, replay: ReplayBuffer, tmp_path: Path
) -> None:
    with Task() as task:
        task.use(mw.collect(policy, envs, steps=4))
        task.use(mw.add_to(replay))
        task.use(mw.train(policy, replay))
        task.use(mw.checkpoint(policy, tmp_path, every=1_000))
        task.run(max_step=40)

    saved = load_checkpoint(tmp_path)
    other = DQN(envs.spec, policy.config)
    other.load_state_dict(saved.state)
    assert saved.meta == {"total_step": 39, "env_step": 160, "train_iter": 39}

    batch = replay.sample(8)
    assert other.learn(batch) == policy.learn(batch)
    obs = np.ones((50, 4), dtype=np.float32)
    np.testing.assert_array_equal(other.act(obs), policy.act(obs))


def test_ctrl_c_ends_the_step_and_then_saves(policy: DQN, tmp_path: Path) -> None:
    ended: list[int] = []

    def interrupt(ctx: Context) -> None:
        if ctx.total_step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with Task() as task:
        task.use(interrupt)
        task.use(mw.checkpoint(policy, tmp_path, every=1_000))
        task.use(lambda ctx: ended.append(ctx.total_step))
        with pytest.raises(KeyboardInterrupt):
            task.run(max_step=1_000_000)

    assert saved_step(tmp_path) == ended[-1] >= 2


def test_an_interrupt_in_the_middle_of_a_step_saves_nothing(policy: DQN, tmp_path: Path) -> None:
    def interrupt(ctx: Context) -> None:
        if ctx.total_step == 4:
            raise KeyboardInterrupt  # as a second Ctrl-C does

    with Task() as task:
        task.use(mw.checkpoint(policy, tmp_path, every=3))
        task.use(interrupt)
        with pytest.raises(KeyboardInterrupt):
            task.run(max_step=10)
    assert saved_step(tmp_path) == 2


def test_an_error_leaves_the_last_good_one_alone(policy: DQN, tmp_path: Path) -> None:
    def fail(ctx: Context) -> None:
        if ctx.total_step == 4:
            raise ValueError("a bug")

    with Task() as task:
        task.use(mw.checkpoint(policy, tmp_path, every=3))
        task.use(fail)
        with pytest.raises(ValueError, match="a bug"):
            task.run(max_step=10)
    assert saved_step(tmp_path) == 2


def test_a_policy_with_a_weight_that_is_nan_is_not_saved(policy: DQN, tmp_path: Path) -> None:
    def poison(ctx: Context) -> None:
        if ctx.total_step == 4:
            policy.load_weights({k: v * torch.nan for k, v in policy.weights().items()})

    with Task() as task:
        task.use(poison)
        task.use(mw.checkpoint(policy, tmp_path, every=3))
        with pytest.raises(NonFiniteError, match=r"policy\['q_net'\].* no longer finite"):
            task.run(max_step=10)
    assert saved_step(tmp_path) == 2


def test_a_second_run_saves_again(policy: DQN, tmp_path: Path) -> None:
    with Task() as task:
        task.use(mw.checkpoint(policy, tmp_path, every=1_000))
        task.run(max_step=2)
        assert saved_step(tmp_path) == 1
        task.run(max_step=2)
        assert saved_step(tmp_path) == 3


def test_a_file_in_place_of_the_directory_is_refused_at_once(policy: DQN, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    file.touch()
    with pytest.raises(ConfigError, match="is a file"):
        mw.checkpoint(policy, file, every=1)


def test_a_directory_that_cannot_be_made_is_known_before_the_first_step(
    policy: DQN, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be made"):
        run_step(mw.checkpoint(policy, tmp_path / "file" / "checkpoint", every=1))


def test_saving_every_zero_steps_is_refused(policy: DQN, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`every` is 0"):
        mw.checkpoint(policy, tmp_path, every=0)
