"""Training: how often, on what, and what happens when it goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError, NonFiniteError
from ding_lite.rl.checkpoint import load_checkpoint
from ding_lite.rl.envs import Envs
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.replay import ReplayBuffer
from ding_lite.runtime.context import Context
from ding_lite.runtime.task import Task
from ding_lite.testing import run_step


def flat(policy: DQN) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in policy.weights().values()])


@pytest.fixture
def filled(envs: Envs, replay: ReplayBuffer) -> ReplayBuffer:
    run_step(mw.random_warmup(envs, replay, steps=200))
    return replay


def test_a_step_makes_as_many_updates_as_asked(policy: DQN, filled: ReplayBuffer) -> None:
    before = flat(policy)
    with Task() as task:
        task.use(mw.train(policy, filled, updates=3))
        task.run(max_step=4)

    assert task.ctx.train_iter == policy.train_iter == 12
    assert task.ctx.metrics["loss"] == task.ctx.train_output["loss"]
    assert len(task.ctx.train_data) == policy.config.batch_size
    assert not torch.equal(before, flat(policy))


def test_the_batch_size_may_differ_from_the_policys(policy: DQN, filled: ReplayBuffer) -> None:
    ctx, _ = run_step(mw.train(policy, filled, batch_size=32))
    assert len(ctx.train_data) == 32


def test_nothing_is_learned_from_less_than_a_batch(
    policy: DQN, envs: Envs, replay: ReplayBuffer
) -> None:
    before = flat(policy)
    run_step(mw.random_warmup(envs, replay, steps=4))
    ctx, _ = run_step(mw.train(policy, replay))

    assert ctx.train_iter == 0
    assert "loss" not in ctx.metrics
    assert torch.equal(before, flat(policy))


def test_without_a_replay_it_learns_from_the_steps_transitions(policy: DQN, envs: Envs) -> None:
    with Task() as task:
        task.use(mw.collect(policy, envs, steps=16))
        task.use(mw.train(policy))
        task.run(max_step=3)
    assert task.ctx.train_iter == policy.train_iter == 3
    assert task.ctx.train_data is task.ctx.transitions


def test_without_a_replay_an_empty_step_teaches_nothing(envs: Envs) -> None:
    policy = DQN(envs.spec, DQNConfig(hidden=(16,), n_step=3))
    with Task() as task:
        task.use(mw.collect(policy, envs, steps=4))
        task.use(mw.train(policy))
        task.run(max_step=3)  # the first two steps complete no transition of three
    assert task.ctx.train_iter == 1


def test_counting_goes_on_from_what_the_ctx_says(policy: DQN, filled: ReplayBuffer) -> None:
    ctx, _ = run_step(mw.train(policy, filled), train_iter=41)
    assert ctx.train_iter == 42


def test_a_batch_larger_than_the_replay_is_refused(policy: DQN, replay: ReplayBuffer) -> None:
    with pytest.raises(ConfigError, match=r"`batch_size` is 1,001, the capacity .* 1,000"):
        mw.train(policy, replay, batch_size=1_001)


def test_the_policys_own_batch_is_held_against_the_replay_too(envs: Envs) -> None:
    small = ReplayBuffer(envs.spec, capacity=64)
    with pytest.raises(ConfigError, match=r"`batch_size` is 128, the capacity of the replay 64"):
        mw.train(DQN(envs.spec), small)


@pytest.mark.parametrize(("setting", "value"), [("batch_size", 0), ("updates", 0)])
def test_counts_below_one_are_refused(
    policy: DQN, replay: ReplayBuffer, setting: str, value: int
) -> None:
    with pytest.raises(ConfigError, match=f"`{setting}` is {value}"):
        mw.train(policy, replay, **{setting: value})


def test_a_batch_size_without_a_replay_is_refused(policy: DQN) -> None:
    with pytest.raises(ConfigError, match="no replay to sample that many from"):
        mw.train(policy, batch_size=32)


def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint(
    policy: DQN, filled: ReplayBuffer, tmp_path: Path
) -> None:
    def poison(ctx: Context) -> None:
        if ctx.total_step == 3:
            policy.load_weights({k: v * torch.nan for k, v in policy.weights().items()})

    with Task() as task:
        task.use(poison)
        task.use(mw.train(policy, filled, updates=2))
        task.use(mw.checkpoint(policy, tmp_path, every=2))
        with pytest.raises(NonFiniteError, match=r"update 7\b") as caught:
            task.run(max_step=10)

    assert "in middleware `train` (2nd of 3), step 3" in "".join(caught.value.__notes__)
    saved = load_checkpoint(tmp_path)
    assert saved.meta["train_iter"] == 4
    assert all(torch.isfinite(t).all() for t in saved.state["q_net"].values())
