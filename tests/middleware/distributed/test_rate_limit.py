"""A collector that keeps pace with the learner waits for it, and for nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ding_lite import middleware as mw
from ding_lite.errors import DeadlineExceeded
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime import Context, LocalRouter, use_router
from ding_lite.testing import Cluster, run_step
from tests.middleware.running import run_job
from tests.nodes import delivered

Routers = tuple[NodeRouter, ...]


@pytest.fixture
def routers() -> Iterator[Routers]:
    """Connect a collector, a learner and another one."""
    with Cluster(3) as cluster:
        yield cluster.routers


def pace_of(collector: NodeRouter, **settings: Any) -> Any:
    with use_router(collector):
        return mw.rate_limit(**settings)


def update(learner: NodeRouter, train_iter: int) -> None:
    """Publish the number of updates, and return once the collector has it."""
    learner.publish_ctx({"train_iter": train_iter})
    delivered(learner)


def goes_on(pace: Any, env_step: int) -> bool:
    try:
        run_step(pace, env_step=env_step)
    except DeadlineExceeded:
        return False
    return True


def test_a_collector_may_be_so_many_env_steps_ahead_of_the_updates(routers: Routers) -> None:
    collector, learner, _ = routers
    pace = pace_of(collector, env_steps_per_update=8, ahead=100, timeout=0.0)
    assert goes_on(pace, 5_000)  # no learner has begun
    update(learner, 10)
    assert goes_on(pace, 6_000)  # from here on it counts
    assert goes_on(pace, 6_100)
    assert not goes_on(pace, 6_101)
    update(learner, 12)
    assert goes_on(pace, 6_116)
    with pytest.raises(DeadlineExceeded, match=r"at env step 6,?117 .* has made 12 updates"):
        run_step(pace, env_step=6_117)


def test_a_learner_that_another_node_begins_anew_is_followed_from_there(routers: Routers) -> None:
    collector, learner, other = routers
    pace = pace_of(collector, env_steps_per_update=1, ahead=0, timeout=0.0)
    update(learner, 1_000)
    assert goes_on(pace, 50)
    update(other, 0)
    assert goes_on(pace, 9_000)
    update(other, 1)
    assert goes_on(pace, 9_500)
    assert not goes_on(pace, 9_501)


def test_a_learner_that_resumes_between_its_first_and_its_last_update_is_followed(routers) -> None:
    collector, learner, other = routers
    pace = pace_of(collector, env_steps_per_update=1, ahead=0, timeout=0.0)
    update(learner, 10)
    assert goes_on(pace, 50)
    update(learner, 1_000)
    assert goes_on(pace, 1_040)
    update(other, 990)  # a second learner that lags has not been restarted
    assert not goes_on(pace, 1_040)
    update(learner, 500)
    assert goes_on(pace, 1_040)
    assert not goes_on(pace, 1_041)
    update(learner, 510)
    assert goes_on(pace, 1_050)


def test_before_the_first_update_a_collector_makes_no_more_than_it_may(routers: Routers) -> None:
    collector, learner, _ = routers
    pace = pace_of(collector, env_steps_per_update=1, ahead=0, at_first=500, timeout=0.0)
    assert goes_on(pace, 499)
    with pytest.raises(DeadlineExceeded, match=r"first update, .* allows 500 env steps before it"):
        run_step(pace, env_step=500)
    update(learner, 8)
    assert goes_on(pace, 500)
    update(learner, 9)
    assert goes_on(pace, 501)
    assert not goes_on(pace, 502)
    with use_router(LocalRouter()):  # alone it is its own learner
        pace = mw.rate_limit(env_steps_per_update=1, ahead=0, at_first=10, timeout=0.0)
        assert not run_step(pace, env_step=99)[0].metrics
        assert not run_step(pace, env_step=99, train_iter=1)[0].metrics


def test_the_replay_of_a_learner_that_begins_anew_is_filled_again(routers: Routers) -> None:
    collector, learner, _ = routers
    pace = pace_of(collector, env_steps_per_update=1, at_first=500, timeout=0.0)
    update(learner, 1_000)
    assert goes_on(pace, 9_000)
    update(learner, 0)
    assert goes_on(pace, 9_000)
    assert goes_on(pace, 9_499)
    assert not goes_on(pace, 9_500)


def test_a_resumed_collector_fills_the_replay_again(routers: Routers) -> None:
    pace = pace_of(routers[0], env_steps_per_update=1, at_first=500, timeout=0.0)
    for env_step in (9_000, 9_499):
        run_step(pace, env_step=env_step, total_step=70)
    with pytest.raises(DeadlineExceeded, match="at env step 9,500"):
        run_step(pace, env_step=9_500, total_step=71)


def test_a_wait_ends_with_an_update_and_with_the_job() -> None:
    is_waiting = threading.Event()

    def collect(ctx: Context) -> None:
        ctx.env_step = ctx.get("env_step", 0) + 10
        ctx.keep("env_step")
        is_waiting.set()

    def learn(ctx: Context) -> None:
        assert is_waiting.wait(10.0)
        ctx.train_iter = ctx.total_step + 1
        ctx.finish = ctx.total_step == 20

    run_job(
        ["learner", "collector"],
        learner=lambda: [learn],
        collector=lambda: [mw.rate_limit(env_steps_per_update=10, ahead=0, timeout=None), collect],
    )


def test_a_node_that_learns_and_collects_does_not_wait_for_itself(routers: Routers) -> None:
    pace = pace_of(routers[0], env_steps_per_update=1, at_first=10, timeout=0.0)
    run_step(pace, env_step=10, train_iter=0)
    with pytest.raises(DeadlineExceeded, match="waits for the learner's first update"):
        run_step(pace, env_step=10)
