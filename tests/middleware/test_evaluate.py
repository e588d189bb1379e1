"""Evaluating: when, how honestly, and when it ends the run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from ding_lite import middleware as mw
from ding_lite.rl import DQN, Envs, load_checkpoint, make_envs
from ding_lite.rl.batch import NumpyArray
from ding_lite.runtime import Context, Middleware, Task
from ding_lite.testing import run_step
from tests.middleware.running import run_steps


class Balancer(DQN):
    """A DQN that balances by rule for its first `good_for` evaluations, and then forgets how."""

    good_for = 10**9
    asked = 0

    def act(
        self, obs: NumpyArray, *, explore: bool = True, epsilon: float | None = None
    ) -> NumpyArray:
        if (np.abs(obs) <= 0.05).all():
            self.asked += 1  # all envs have just been reset: an evaluation begins
        if self.asked > self.good_for:
            return np.zeros(len(obs), dtype=np.int64)
        return (obs[:, 2] + 0.3 * obs[:, 3] + 0.02 * obs[:, 0] > 0).astype(np.int64)


LONGEST = 100
"""Env steps that an episode takes at most."""


@pytest.fixture
def eval_envs() -> Iterator[Envs]:
    with short_envs(2) as envs:
        yield envs


def short_envs(num_envs: int) -> Envs:
    return make_envs("CartPole-v1", num_envs, seed=1, env_args={"max_episode_steps": LONGEST})


@pytest.fixture
def balancer(envs: Envs) -> Balancer:
    return Balancer(envs.spec)


def test_evaluations_come_every_so_many_steps_and_not_before_anything_is_learned(policy, eval_envs):
    evaluated: list[int] = []

    def note(ctx: Context) -> None:
        if "eval_value" in ctx:
            evaluated.append(ctx.total_step)
            assert ctx.metrics["eval_return"] == ctx.eval_value > 0

    run_steps(mw.evaluate(policy, eval_envs, every=4), note, steps=12)
    assert evaluated == [3, 7, 11]


def test_a_named_evaluation_leaves_that_of_the_policy_alone(policy, balancer, eval_envs) -> None:
    first = mw.evaluate(policy, eval_envs, every=2)
    task = run_steps(first, mw.evaluate(balancer, eval_envs, every=1, name="hard"), steps=2)
    metrics = task.ctx.metrics
    assert task.ctx.eval_value == metrics["eval_return"] < metrics["eval_return/hard"]
    assert {"eval_env_steps", "eval_episodes/hard", "eval_env_steps/hard"} <= metrics.keys()


@pytest.mark.parametrize("shared", [True, False])
def test_envs_that_a_collector_uses_too_are_warned_of_once(policy, envs, eval_envs, caplog, shared):
    run_steps(
        mw.collect(policy, envs, steps=4),
        mw.evaluate(policy, envs if shared else eval_envs, every=2),
        steps=8,
    )
    warnings = [r for r in caplog.records if "make envs for evaluations only" in r.getMessage()]
    assert len(warnings) == shared


@pytest.mark.parametrize(
    ("good_for", "stop_at", "confirm_at", "value"),
    [
        (10**9, 95.0, None, 100.0),
        (1, 95.0, None, 9.5),
        (1, 101.0, 95.0, 9.5),
        (10**9, 101.0, 95.0, 100.0),
    ],
    ids=["good", "lucky", "lucky and not good enough", "good and not good enough"],
)
def test_only_a_good_policy_ends_the_run(good_for, stop_at, confirm_at, value, balancer, eval_envs):
    balancer.good_for = good_for
    evaluate = mw.evaluate(balancer, eval_envs, every=1, stop_at=stop_at, confirm_at=confirm_at)
    ctx, record = run_step(evaluate)
    assert ("finish" in record.writes) == (value > stop_at)
    assert ctx.eval_value == pytest.approx(value, abs=1.0)  # the mean of the fresh episodes


def test_confirmation_plays_twenty_fresh_episodes(balancer: Balancer) -> None:
    with short_envs(8) as envs:
        played: list[int] = []
        take = envs.take_finished

        def counting() -> list:  # type: ignore[type-arg]
            ended = take()
            played.append(len(ended))
            return ended

        envs.take_finished = counting  # type: ignore[method-assign]
        run_step(mw.evaluate(balancer, envs, every=1, stop_at=95.0))
        assert sum(played) == 8 + 24  # 20, rounded up to three for each of the eight

        played.clear()
        run_step(mw.evaluate(balancer, envs, every=1, stop_at=95.0, episodes=3, confirm=0))
        assert sum(played) == 8


@pytest.mark.parametrize("episodes", [2, 4])
def test_a_signal_ends_an_evaluation_of_episodes_without_an_end(episodes, tmp_path) -> None:
    class Interrupted(Balancer):
        left = 300

        def act(self, obs, *, explore=True, epsilon=None):
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
            action = super().act(obs, explore=explore)
            action[0] = 0  # episodes of the first env end soon
            return action

    with make_envs("CartPole-v1", 2, env_args={"max_episode_steps": -1}) as endless:
        policy = Interrupted(endless.spec)
        evaluate = mw.evaluate(policy, endless, every=1, episodes=episodes, stop_at=0.0)
        task = Task()
        with pytest.raises(KeyboardInterrupt), task:
            task.use(evaluate).use(mw.checkpoint(policy, tmp_path, every=1_000)).run()
    assert policy.left == 0
    assert {"eval_value", "eval_return"}.isdisjoint({*task.ctx, *task.ctx.metrics})
    assert load_checkpoint(tmp_path).meta["total_step"] == 0


def test_evaluating_neither_explores_nor_disturbs_the_policy(policy: DQN, eval_envs: Envs) -> None:
    before = policy.state_dict()
    run_step(mw.evaluate(policy, eval_envs, every=1))
    after = policy.state_dict()
    assert after["env_step"] == before["env_step"]
    np.testing.assert_array_equal(after["rng"], before["rng"])


@pytest.mark.parametrize(
    ("limits", "values", "ends"),
    [
        ({"env_step": 100}, {"env_step": 96}, False),
        ({"env_step": 100}, {"env_step": 104}, True),
        ({"env_step": 100}, {"env_step": 60, "eval_steps": 39}, False),
        ({"env_step": 100}, {"env_step": 60, "eval_steps": 40}, True),
        ({"train_iter": 10}, {"train_iter": 10}, True),
        ({"train_iter": 100}, {"train_iter": 60, "eval_steps": 90}, False),
        ({"eval_value": 475.0}, {}, False),
        ({"eval_value": 475.0}, {"eval_value": 474.9}, False),
        ({"eval_value": -100.0}, {"eval_value": -99.0}, True),
        ({"eval_value": 475.0, "env_step": 100}, {"env_step": 100}, True),
    ],
)
def test_the_run_ends_when_a_number_is_reached(limits, values, ends) -> None:
    assert ("finish" in run_step(mw.stop_at(**limits), **values)[1].writes) == ends


def collecting(length: float | None) -> Middleware:
    """Make what counts 100 env steps a step, of episodes of some length."""

    def collect(ctx: Context) -> None:
        ctx.env_step = ctx.get("env_step", 0) + 100
        ctx.keep("env_step")
        if length is not None:
            ctx.metrics["episode_length"] = length

    return collect


def test_within_a_share_evaluations_wait_until_they_are_paid_for(policy, eval_envs) -> None:
    evaluated: list[tuple[int, float]] = []

    def note(ctx: Context) -> None:
        if "eval_value" in ctx:
            evaluated.append((ctx.env_step, ctx.metrics["eval_env_steps"]))

    evaluate = mw.evaluate(policy, eval_envs, every=1, share=0.1)
    run_steps(collecting(10.0), evaluate, note, steps=200)
    first = eval_envs.num_envs * 10 * 10  # what the first one takes, ten times
    assert evaluated[0][0] == pytest.approx(first, abs=100)
    assert len(evaluated) > 2
    assert all(spent <= 0.1 * env_step * 1.3 for env_step, spent in evaluated)
    assert evaluate.state_dict()["env_steps"] == evaluated[-1][1]


@pytest.mark.parametrize(("max_env_steps", "first"), [(4_000, 2_000), (5_200, 5_000)])
def test_where_a_share_covers_no_evaluation_it_has_fewer_episodes(balancer, max_env_steps, first):
    with short_envs(1) as eval_envs:
        evaluate = mw.evaluate(
            balancer, eval_envs, every=1, episodes=5, share=0.1, max_env_steps=max_env_steps
        )
        task = run_steps(collecting(100.0), evaluate, finish_once_evaluated, steps=60)
    assert task.ctx.env_step == first
    assert evaluate.state_dict()["env_steps"] == 0.1 * first
    assert evaluate.count == 1


def test_within_a_share_nothing_is_played_before_an_episode_is_paid_for(policy, eval_envs) -> None:
    evaluate = mw.evaluate(policy, eval_envs, every=1, share=0.1)
    task = run_steps(collecting(None), evaluate, steps=19)  # episodes may take 100 env steps
    assert "eval_value" not in task.ctx


def finish_once_evaluated(ctx: Context) -> None:
    ctx.finish = "eval_value" in ctx


def test_within_a_share_only_a_good_policy_is_confirmed_beyond_it(balancer, eval_envs) -> None:
    for good_for, is_good in ((10**9, True), (1, False)):
        balancer.good_for, balancer.asked = good_for, 0
        evaluate = mw.evaluate(balancer, eval_envs, every=1, stop_at=95.0, share=0.1)
        task = run_steps(collecting(10.0), evaluate, finish_once_evaluated, steps=200)
        assert (task.ctx.eval_value == LONGEST) == is_good
        assert (evaluate.state_dict()["env_steps"] >= 20 * LONGEST) == is_good


def test_within_a_share_an_episode_that_reached_the_target_is_tried_at_once(balancer) -> None:
    def reach(ctx: Context) -> None:
        ctx.metrics["episode_return"] = 96.0 if ctx.total_step == 9 else 9.0

    with short_envs(1) as eval_envs:
        evaluate = mw.evaluate(balancer, eval_envs, every=2, stop_at=95.0, episodes=5, share=0.1)
        # Five episodes are paid for after 4,500 env steps.
        task = run_steps(collecting(90.0), reach, evaluate, steps=40)
    assert (task.ctx.env_step, task.ctx.eval_value) == (1_000, LONGEST)
    final = evaluate.final(1_000)
    assert final is not None
    assert (final.mean_return, final.env_steps, final.episodes) == (LONGEST, 20 * LONGEST, 20)
    assert evaluate.final(1_100) is None


def test_within_a_share_a_try_that_fails_is_ended_and_paid_for_by_later_ones(policy: DQN) -> None:
    tried: list[tuple[int, float, float]] = []

    def note(ctx: Context) -> None:
        if "eval_value" in ctx:
            about = ctx.metrics["eval_episodes"], ctx.metrics["eval_env_steps"]
            tried.append((ctx.env_step, *about))

    with short_envs(1) as eval_envs:
        run_steps(
            collecting(90.0),
            lambda ctx: ctx.metrics.update(episode_return=96.0),
            mw.evaluate(policy, eval_envs, every=1, stop_at=95.0, episodes=5, share=0.001),
            note,
            steps=400,
        )
    assert len(tried) > 1
    assert {episodes for _, episodes, _ in tried} == {1}
    for (_, _, before), (env_step, _, _) in pairwise(tried):
        assert before <= 0.001 * env_step


def test_within_a_share_an_episode_without_an_end_is_cut() -> None:
    with make_envs("CartPole-v1", 1, env_args={"max_episode_steps": 20_000}) as eval_envs:
        balancer = Balancer(eval_envs.spec)
        evaluate = mw.evaluate(balancer, eval_envs, every=1, episodes=5, share=0.1)
        task = run_steps(collecting(10.0), evaluate, steps=200)
    assert "eval_value" not in task.ctx
    assert evaluate.state_dict()["env_steps"] == 1_000
