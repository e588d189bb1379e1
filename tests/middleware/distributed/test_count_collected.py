"""A learner without envs knows how far its collectors are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ding_lite import Context, middleware as mw
from ding_lite.distributed.topics import COLLECTED
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.rl import DQN, DQNConfig, make_envs
from ding_lite.runtime.messaging.router import use_router
from ding_lite.testing import Cluster, run_step
from tests.middleware.running import run_job
from tests.nodes import delivered

Routers = tuple[NodeRouter, ...]


@pytest.fixture
def routers() -> Iterator[Routers]:
    with Cluster(4, roles=["learner", "collector", "collector", "evaluator"]) as cluster:
        yield cluster.routers


def played(env_step: int, mean: float, episodes: int, **more: int) -> dict[str, Any]:
    counts = {"env_step": env_step, "episodes": episodes, **more}
    return {**counts, "return": mean, "episode_length": mean}


def test_what_collectors_have_done_is_added_up(routers: Routers) -> None:
    learner, one, other, evaluator = routers
    with use_router(learner):
        tally = mw.count_collected("collector")
        assert "env_step" not in run_step(tally)[0]
        one.publish_ctx({"env_step": 10})
        delivered(one)
        assert run_step(tally)[0].env_step == 10
        one.publish(COLLECTED, played(30, 4.0, 2))
        other.publish(COLLECTED, played(100, 8.0, 3))
        evaluator.publish(COLLECTED, played(999, 99.0, 9))
        delivered(one, other, evaluator)
        ctx, _ = run_step(tally)
    assert ctx.env_step == 130
    assert ctx.metrics == {"return": 6.0, "episode_length": 6.0, "episodes": 5}


def test_what_a_collector_did_in_earlier_lives_counts_on(routers: Routers) -> None:
    learner, one, *_ = routers
    with use_router(learner):
        tally = mw.count_collected("collector")
        for env_step, episodes in ((50, 5), (8, 1), (20, 2), (4, 1)):
            one.publish(COLLECTED, played(env_step, 1.0, episodes))
            delivered(one)
            ctx, _ = run_step(tally)
    assert (ctx.env_step, ctx.metrics["episodes"]) == (50 + 20 + 4, 5 + 2 + 1)


def test_a_resumed_run_counts_on_where_it_was(routers: Routers) -> None:
    learner, one, *_ = routers
    with use_router(learner):
        tally = mw.count_collected("collector")
        one.publish(COLLECTED, played(50, 1.0, 5))
        delivered(one)
        run_step(tally)
    with Cluster(2, roles=["learner", "collector"]) as cluster:
        learner, one = cluster.routers
        with use_router(learner):
            resumed = mw.count_collected("collector")
            resumed.load_state_dict(tally.state_dict())  # type: ignore[attr-defined]
            one.publish(COLLECTED, played(7, 1.0, 1))
            delivered(one)
            ctx, _ = run_step(resumed)
    assert (ctx.env_step, ctx.metrics["episodes"]) == (57, 6)


@pytest.mark.parametrize(
    ("incarnation", "expected"),
    [
        pytest.param(1, (80, 8), id="the collector went on"),
        pytest.param(2, (50 + 80, 5 + 8), id="the collector was restarted too"),
    ],
)
def test_a_restarted_learner_counts_no_env_step_twice(
    routers: Routers, incarnation: int, expected: tuple[int, int]
) -> None:
    learner, one, *_ = routers
    with use_router(learner):
        tally, resumed = mw.count_collected("collector"), mw.count_collected("collector")
        one.publish(COLLECTED, played(50, 1.0, 5, incarnation=1))
        delivered(one)
        run_step(tally)
        resumed.load_state_dict(tally.state_dict())  # type: ignore[attr-defined]
        for _ in range(2):
            one.publish(COLLECTED, played(80, 1.0, 8, incarnation=incarnation))
            delivered(one)
            ctx, _ = run_step(resumed)
            assert (ctx.env_step, ctx.metrics["episodes"]) == expected


def test_what_a_resumed_collector_has_made_before_is_counted_once(routers: Routers) -> None:
    learner, one, *_ = routers
    envs = make_envs("CartPole-v1", num_envs=2)
    policy = DQN(envs.spec, DQNConfig(hidden=(4,)))
    state: dict[str, Any] = {}
    with use_router(learner):
        tally = mw.count_collected("collector")
    for env_step in (0, 400):
        with use_router(one):
            collect: Any = mw.collect(policy, envs, steps=400)
            if state:
                collect.load_state_dict(state)
        ctx = Context(env_step=env_step, metrics={})
        collect(ctx)
        state = collect.state_dict()
        counts = one.published(COLLECTED)
        for more in (0, 10):  # ten env steps more than it has saved
            made = {"incarnation": env_step + 1, "env_step": ctx.env_step + more}
            one.publish(COLLECTED, counts | made)
            delivered(one)
            with use_router(learner):
                sums, _ = run_step(tally)
    assert sums.env_step == 410 + 410
    assert sums.metrics["episodes"] == counts["episodes"] > 0


def test_a_learner_that_collects_too_adds_its_own_env_steps() -> None:
    roles = [{"learner", "collector"}, "collector"]
    with Cluster(2, roles=roles) as cluster, use_router(cluster.routers[0]):
        learner, other = cluster.routers
        tally, env_step = mw.count_collected("collector"), 0
        for k in range(1, 4):
            learner.publish(COLLECTED, played(env_step + 10, 4.0, k))
            other.publish(COLLECTED, played(100 * k, 8.0, 5))
            delivered(other)
            ctx, _ = run_step(tally, env_step=env_step + 10)
            env_step = ctx.env_step
            assert env_step == 10 * k + 100 * k
            assert ctx.metrics == {"return": 6.0, "episode_length": 6.0, "episodes": k + 5}
            if k == 2:
                state = tally.state_dict()  # type: ignore[attr-defined]
                tally = mw.count_collected("collector")
                tally.load_state_dict(state)  # type: ignore[attr-defined]


def test_in_one_process_it_leaves_the_values_of_collect_alone() -> None:
    assert run_step(mw.count_collected(), env_step=5)[0].env_step == 5


def test_the_learner_of_a_star_can_stop_at_the_env_steps_of_all() -> None:
    def play(ctx: Context) -> None:
        ctx.env_step = ctx.get("env_step", 0) + 1
        ctx.keep("env_step")

    ends = run_job(
        ["learner", "collector", "collector"],
        collector=lambda: [play],
        learner=lambda: [mw.count_collected(), mw.stop_at(env_step=50)],
    )
    # A collector that was late to begin has made none.
    learner, *collectors = [int(ctx.get("env_step", 0)) for ctx in ends]
    assert learner >= 50
    assert sum(collectors) >= learner
