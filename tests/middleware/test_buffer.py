"""The way into the replay, and holding training back until it holds enough."""

from __future__ import annotations

import numpy as np
import pytest

from ding_lite import middleware as mw
from ding_lite.rl.batch import Transitions
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.policies.dqn import DQN
from ding_lite.rl.replay.prioritized import PrioritizedReplay
from ding_lite.runtime.context import Context
from tests.middleware.running import run_steps


@pytest.mark.parametrize("times", [1, 2])
def test_what_was_collected_or_sent_by_several_nodes_ends_up_in_the_replay(
    policy, envs, replay, times
) -> None:
    def receive(ctx: Context) -> None:
        ctx.transitions = ctx.transitions if times == 1 else [ctx.transitions] * times

    task = run_steps(mw.collect(policy, envs, steps=8), receive, mw.add_to(replay), steps=5)
    assert len(replay) == task.ctx.metrics["replay_size"] == 40 * times


def test_training_waits_until_the_replay_holds_enough(policy, envs, replay) -> None:
    updates: list[int] = []
    run_steps(
        mw.collect(policy, envs, steps=4),
        mw.add_to(replay),
        mw.wait_for(replay, size=40),
        mw.train(policy, replay, batch_size=8),
        lambda ctx: updates.append(ctx.train_iter),
        steps=12,
    )

    assert updates == [0] * 9 + [1, 2, 3]


def test_collectors_of_apex_add_with_the_errors_of_their_policy(policy: DQN, envs: Envs) -> None:
    replay = PrioritizedReplay(envs.spec, capacity=100, alpha=1.0, offset=1e-9)
    run_steps(
        mw.collect(policy, envs, steps=32), mw.add_to(replay, priority=policy.td_errors), steps=2
    )

    drawn = replay.draw(400)
    fields = dict(drawn.fields.items())
    errors = np.abs(policy.td_errors(Transitions(**fields)))
    np.testing.assert_allclose(drawn.value, errors, rtol=1e-4, atol=1e-6)
    assert len({*drawn.value.tolist()}) > 10
