"""A learner without envs knows how far its collectors are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ding_lite import Context, middleware as mw
from ding_lite.distributed.topics import COLLECTED
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs
from ding_lite.runtime.messaging.router import use_router
from ding_lite.testing import Cluster, run_step
from tests.middleware.running import run_job
from tests.nodes import delivered

Routers = tuple[NodeRouter, ...]


@pytest.fixture
def routers() -> Iterator[Routers]:
    with Cluster(4, roles=["learner", "collector", "collector", "evaluator"]) as cluster:
        yield cluster.routers


def played(
    env_step: int, mean: float, episodes: int, incarnation: str = "1", **former: list[int]
) -> dict[str, Any]:
    made = {**former, incarnation: [env_step, episodes]}
    return {"made": made, "return": mean, "episode_length": mean}


def test_what_collectors_and_all_their_incarnations_have_done_is_added_up(routers: Routers) -> None:
    learner, one, other, evaluator = routers
    with use_router(learner):
        tally = mw.count_collected("collector")
        assert "env_step" not in run_step(tally)[0]
        one.publish_ctx({"env_step": 10})
        delivered(one)
        assert run_step(tally)[0].env_step == 10
        for number, (env_step, episodes) in enumerate(((5, 0), (8, 1), (17, 1))):
            one.publish(COLLECTED, played(env_step, 4.0, episodes, str(number)))
            delivered(one)
        other.publish(COLLECTED, played(100, 8.0, 3, "9"))
        evaluator.publish(COLLECTED, played(999, 99.0, 9, "8"))
        delivered(other, evaluator)
        ctx, _ = run_step(tally)
    assert ctx.env_step == 5 + 8 + 17 + 100
    assert ctx.metrics == {"return": 6.0, "episode_length": 6.0, "episodes": 5}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([(0, 10), (50, 100), (0, 10), (40, 300)], 400, id="begins again"),
        pytest.param([(0, 10), (50, 100), (41, 90), (70, 140)], 150, id="resumes"),
    ],
)
def test_a_restarted_collector_of_other_middleware_counts_at_once(routers, steps, expected) -> None:
    learner, one, *_ = routers
    with use_router(learner):
        tally = mw.count_collected("collector")
        for total_step, env_step in steps:
            one.publish_ctx({"total_step": total_step, "env_step": env_step})
            delivered(one)
        assert run_step(tally)[0].env_step == expected


@pytest.mark.parametrize(
    ("incarnation", "expected"),
    [
        pytest.param("1", (80, 8), id="the collector went on"),
        pytest.param("2", (50 + 80, 5 + 8), id="the collector was restarted too"),
    ],
)
def test_a_restarted_learner_counts_no_env_step_twice(routers, incarnation: str, expected) -> None:
    learner, one, *_ = routers
    with use_router(learner):
        tally, resumed = mw.count_collected("collector"), mw.count_collected("collector")
        one.publish(COLLECTED, played(50, 1.0, 5))
        delivered(one)
        run_step(tally)
        resumed.load_state_dict(tally.state_dict())  # type: ignore[attr-defined]
        for _ in range(2):
            one.publish(COLLECTED, played(80, 1.0, 8, incarnation))
            delivered(one)
            ctx, _ = run_step(resumed)
            assert (ctx.env_step, ctx.metrics["episodes"]) == expected


def test_collectors_that_resume_under_other_numbers_count_once(routers: Routers) -> None:
    envs = make_envs("CartPole-v1", num_envs=2)
    policy = DQN(envs.spec, DQNConfig(hidden=(4,)))
    learner = routers[0]
    with use_router(learner):
        tally = mw.count_collected("collector")

    def collect(node: int, state: Any = None) -> Any:
        with use_router(routers[node]):
            made: Any = mw.collect(policy, envs, steps=400)
        if state is not None:
            made.load_state_dict(state)
        made(ctx := Context(env_step=400 * (state is not None), metrics={}))
        delivered(routers[node])
        with use_router(learner):
            sums, _ = run_step(tally)
        return made.state_dict(), ctx, sums

    (one, _, sums), (two, _, sums) = collect(1), collect(2)
    assert sums.env_step == 400 + 400
    _, of_one, _ = collect(2, one)
    _, of_two, sums = collect(1, two)
    assert sums.env_step == of_one.env_step + of_two.env_step == 800 + 800
    assert sums.metrics["episodes"] == of_one.metrics["episodes"] + of_two.metrics["episodes"] > 0


def test_a_new_learner_counts_what_collectors_have_made_before_they_resumed(routers) -> None:
    learner, one, other, _ = routers
    with use_router(learner):
        tally = mw.count_collected("collector")
        for collector, number in ((one, "1"), (other, "2")):  # both from one checkpoint
            collector.publish(COLLECTED, played(10, 1.0, 1, number, a=[50, 5], b=[30, 3]))
        delivered(one, other)
        ctx, _ = run_step(tally)
    assert (ctx.env_step, ctx.metrics["episodes"]) == (50 + 30 + 10 + 10, 5 + 3 + 1 + 1)


def test_a_learner_that_collects_too_adds_its_own_env_steps() -> None:
    roles = [{"learner", "collector"}, "collector"]
    with Cluster(2, roles=roles) as cluster, use_router(cluster.routers[0]):
        learner, other = cluster.routers
        tally, env_step = mw.count_collected("collector"), 0
        for k in range(1, 4):
            learner.publish(COLLECTED, played(10 * k, 4.0, k))
            other.publish(COLLECTED, played(100 * k, 8.0, 5, "2"))
            delivered(other)
            ctx, _ = run_step(tally, env_step=env_step + 10)
            env_step = ctx.env_step
            assert env_step == 10 * k + 100 * k
            assert ctx.metrics == {"return": 6.0, "episode_length": 6.0, "episodes": k + 5}
            if k == 2:
                state = tally.state_dict()  # type: ignore[attr-defined]
                tally = mw.count_collected("collector")
                tally.load_state_dict(state)  # type: ignore[attr-defined]


def test_nodes_that_all_learn_and_collect_agree_on_the_env_steps_of_all() -> None:
    with Cluster(2, roles=["collector", "collector"]) as cluster:
        nodes = []
        for router in cluster.routers:
            with use_router(router):
                envs = make_envs("CartPole-v1", num_envs=2)
                policy, replay = DQN(envs.spec), ReplayBuffer(envs.spec, capacity=100)
                warmup: Any = mw.random_warmup(envs, replay, steps=20)
                collect: Any = mw.collect(policy, envs, steps=10)
                nodes.append((warmup, collect, mw.count_collected(), Context(metrics={})))
        for k in range(1, 4):
            for warmup, collect, _, ctx in nodes:
                warmup(ctx)
                collect(ctx)
            delivered(*cluster.routers)
            for router, (_, _, tally, ctx) in zip(cluster.routers, nodes, strict=True):
                with use_router(router):
                    tally(ctx)
                assert ctx.env_step == 2 * (20 + 10 * k)


def test_the_learner_of_a_star_can_stop_at_the_env_steps_of_all() -> None:
    def play(ctx: Context) -> None:
        ctx.env_step = ctx.get("env_step", 0) + 1
        ctx.keep("env_step")

    ends = run_job(
        ["learner", "collector", "collector"],
        collector=lambda: [play],
        learner=lambda: [mw.count_collected(), mw.stop_at(env_step=50)],
    )
    assert run_step(mw.count_collected(), env_step=5)[0].env_step == 5  # in one process
    # A collector that was late to begin has made none.
    learner, *collectors = [int(ctx.get("env_step", 0)) for ctx in ends]
    assert learner >= 50
    assert sum(collectors) >= learner


def test_a_job_that_resumes_a_single_process_counts_all_stages_of_it() -> None:
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy, replay = DQN(envs.spec, DQNConfig(hidden=(8,))), ReplayBuffer(envs.spec, capacity=100)
    collect = mw.collect(policy, envs, steps=2)
    warm, _ = run_step(mw.random_warmup(envs, replay, steps=20))
    made = run_step(collect, env_step=warm.env_step)[0].env_step
    with Cluster(2, roles=[{"learner", "collector"}, "collector"]) as cluster:
        learner, one = cluster.routers
        with use_router(learner):
            resumed = mw.collect(policy, envs, steps=2)
            resumed.load_state_dict(collect.state_dict())  # type: ignore[attr-defined]
            one.publish(COLLECTED, played(7, 1.0, 1, "2"))
            delivered(one)
            ctx, _ = run_step(resumed, env_step=made)
            ctx, _ = run_step(mw.count_collected("collector"), env_step=ctx.env_step)
    assert ctx.env_step == made + 2 + 7
