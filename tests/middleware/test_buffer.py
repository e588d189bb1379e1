"""The way into the replay, and holding training back until it holds enough."""

from __future__ import annotations

import pytest

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError, ContextError
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.policies.dqn import DQN
from ding_lite.rl.replay.uniform import ReplayBuffer
from ding_lite.runtime.task import Task
from ding_lite.testing import run_step


def test_what_was_collected_ends_up_in_the_replay(
    policy: DQN, envs: Envs, replay: ReplayBuffer
) -> None:
    with Task() as task:
        task.use(mw.collect(policy, envs, steps=8))
        task.use(mw.add_to(replay))
        task.run(max_step=5)

    assert len(replay) == 40
    assert task.ctx.metrics["replay_size"] == 40


def test_adding_before_collecting_names_the_missing_key(replay: ReplayBuffer) -> None:
    with pytest.raises(ContextError, match=r"`ctx\.transitions` is not set") as caught:
        run_step(mw.add_to(replay))
    assert "add_to" in "".join(caught.value.__notes__)


def test_adding_to_something_that_is_no_replay_is_refused(envs: Envs) -> None:
    with pytest.raises(ConfigError, match="`replay` is a Envs, which has no `add` method"):
        mw.add_to(envs)  # type: ignore[arg-type]


def test_training_waits_until_the_replay_holds_enough(
    policy: DQN, envs: Envs, replay: ReplayBuffer
) -> None:
    updates: list[int] = []
    with Task() as task:
        task.use(mw.collect(policy, envs, steps=4))
        task.use(mw.add_to(replay))
        task.use(mw.wait_for(replay, size=40))
        task.use(mw.train(policy, replay, batch_size=8))
        task.use(lambda ctx: updates.append(ctx.train_iter))
        task.run(max_step=12)

    assert updates == [0] * 9 + [1, 2, 3]


def test_what_comes_after_a_wait_still_runs(replay: ReplayBuffer) -> None:
    steps: list[int] = []
    with Task() as task:
        task.use(mw.wait_for(replay, size=40))
        task.use(lambda ctx: steps.append(ctx.total_step))
        task.run(max_step=3)
    assert steps == [0, 1, 2]


def test_waiting_for_more_than_the_replay_can_hold_is_refused(replay: ReplayBuffer) -> None:
    with pytest.raises(ConfigError, match=r"`size` is 1,001, the capacity of the replay 1,000"):
        mw.wait_for(replay, size=1_001)
    with pytest.raises(ConfigError, match="`size` is 0"):
        mw.wait_for(replay, size=0)
