"""Moving what collectors have made to learners: bounded, to exactly one, and to an end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ding_lite import middleware as mw
from ding_lite.errors import DeadlineExceeded, LabelError
from ding_lite.rl import IMPALA, IMPALAConfig, make_envs
from ding_lite.runtime import Context, LocalRouter, Middleware, current_router, use_router
from ding_lite.testing import Cluster, run_step
from tests.middleware.running import run_job, run_steps


def make(number: Callable[[Context], Any]) -> Callable[[Context], None]:
    """Make a middleware that puts on the ctx what `number` says."""

    def _make(ctx: Context) -> None:
        ctx.trajectories = number(ctx)

    return _make


def star(
    collector: Callable[[], list[Middleware]],
    learner: Callable[[], list[Middleware]],
    *,
    roles: Sequence[Any] = ("learner", "collector"),
    steps: int | None = None,
) -> list[Context]:
    return run_job(roles, steps, collector=collector, learner=learner)


def sending(number: Callable[[Context], Any], **settings: Any) -> list[Middleware]:
    return [make(number), mw.send("trajectories", to="learner", **settings)]


def test_a_value_that_is_no_list_is_one_item_and_leaves_the_ctx() -> None:
    with use_router(LocalRouter()):
        sent, _ = run_step(mw.send("work", to="node.0"), work={"obs": 3.0})
        assert run_step(mw.receive("work"))[0].work == [{"obs": 3.0}]
    assert "work" not in sent


def test_rollouts_of_a_policy_with_memory_bring_the_states_before_their_first_step() -> None:
    found: list[tuple[tuple[int, ...], bool]] = []
    config = IMPALAConfig(memory="lstm", memory_size=4, hidden=(8,))

    def look(ctx: Context) -> None:
        found.extend((one.state.shape, bool(one.state.any())) for one in ctx.trajectories)
        ctx.finish = len(found) >= 3

    def collector() -> list[Middleware]:
        envs = make_envs("CartPole-v1", 2, seed=0)
        collect = mw.collect(IMPALA(envs.spec, config), envs, unroll=4)
        return [collect, mw.send("trajectories", to="learner")]

    def learner() -> list[Middleware]:
        train = mw.train(IMPALA(make_envs("CartPole-v1", 1).spec, config))
        return [mw.receive("trajectories", at_most=1), train, look]

    star(collector, learner)
    assert found == [((2, 16), False), ((2, 16), True), ((2, 16), True)]


def test_a_step_waits_for_enough_and_takes_no_more_than_it_may() -> None:
    sizes: list[int] = []

    def look(ctx: Context) -> None:
        sizes.append(len(ctx.trajectories))
        ctx.finish = len(sizes) >= 20

    star(
        lambda: sending(lambda _: [0, 1, 2], in_flight=20),
        lambda: [mw.receive("trajectories", at_least=4, at_most=5), look],
        roles=["learner", "collector", "collector"],
    )
    assert set(sizes[:20]) <= {4, 5}


def test_a_collector_is_never_more_than_in_flight_ahead_of_a_slow_learner() -> None:
    sent, steps, ahead = [0], threading.Semaphore(0), list[int]()

    def collect(ctx: Context) -> list[int]:
        sent[0] += 1
        steps.release()
        return [ctx.total_step]

    def learn(ctx: Context) -> None:
        # Each step begins only when the collector has done all that it can.
        for _ in range(3 if ctx.total_step == 0 else 1):
            assert steps.acquire(timeout=10.0)
        ahead.append(sent[0] - ctx.total_step)
        ctx.finish = ctx.total_step >= 50

    star(
        lambda: sending(collect, in_flight=2),
        lambda: [learn, mw.receive("trajectories", at_most=1)],
    )
    # Two wait at the learner, and the collector holds one for which there is no room.
    assert max(ahead) == 3


def test_a_slow_collector_makes_the_learner_wait_and_not_spin() -> None:
    go = threading.Semaphore(0)

    def collect(ctx: Context) -> list[int]:
        assert go.acquire(timeout=10.0)
        return [ctx.total_step]

    def allow(ctx: Context) -> None:
        go.release()

    ends = star(lambda: sending(collect), lambda: [allow, mw.receive("trajectories")], steps=20)
    assert [ctx.total_step for ctx in ends] == [19, 19]


@pytest.mark.parametrize("who", ["learner", "collector"])
def test_waits_end_with_the_job(who: str) -> None:
    is_waiting = threading.Event()

    def wait_for_the_other(ctx: Context) -> None:
        assert is_waiting.wait(10.0)
        ctx.finish = True

    def say(ctx: Context) -> None:
        if who == "learner" or ctx.total_step == 2:  # the third has no room
            is_waiting.set()

    if who == "learner":
        star(lambda: [wait_for_the_other], lambda: [say, mw.receive("trajectories")])
    else:
        star(lambda: [say, *sending(lambda _: [0])], lambda: [wait_for_the_other])


def test_the_same_file_runs_in_one_process_and_waits_for_enough_over_several_steps() -> None:
    seen: list[list[int]] = []
    star(
        lambda: sending(lambda ctx: [ctx.total_step], in_flight=1),
        lambda: [mw.receive("trajectories", at_least=3), lambda ctx: seen.append(ctx.trajectories)],
        roles=[{"learner", "collector"}],
        steps=7,
    )
    assert seen == [[], [], [0, 1, 2], [], [], [3, 4, 5], []]


def test_in_one_process_the_learner_may_come_before_the_collector() -> None:
    received = []
    with use_router(LocalRouter()):  # no items of other tests
        run_steps(
            mw.receive("work", timeout=0.0),
            lambda ctx: received.append(ctx.work),
            lambda ctx: ctx.update(work=ctx.total_step),
            mw.send("work", to="node.0", timeout=None),
            steps=3,
        )
    assert received == [[], [0], [1]]
    with pytest.raises(DeadlineExceeded, match="No item of stream `nothing` came"):
        run_steps(mw.receive("nothing", timeout=0.0), steps=2)


def test_a_learner_that_sends_to_itself_does_not_wait_beside_an_evaluator() -> None:
    received = []
    roles = [{"learner", "collector"}, "evaluator"]
    with Cluster(2, roles=roles) as cluster, use_router(cluster.routers[0]):
        send = mw.send("work", to="learner", timeout=0.0)
        receive = mw.receive("work", at_least=2, timeout=0.0)
        for step in range(4):
            run_step(send, work=step)
            received.append(run_step(receive)[0].work)
    assert received == [[], [0, 1], [], [2, 3]]


def test_one_process_may_send_itself_more_than_are_in_flight_at_a_time() -> None:
    send = mw.send("trajectories", to="node.0", in_flight=2)
    receive = mw.receive("trajectories", at_most=9)
    task = run_steps(make(lambda _: [*range(9)]), send, receive, steps=3)
    assert task.ctx.trajectories == [*range(9)]


def test_a_node_that_collects_too_does_not_keep_others_waiting() -> None:
    steps: list[list[int]] = []

    def look(ctx: Context) -> None:
        steps.append(ctx.trajectories)
        ctx.finish = sum(map(sum, steps)) >= 10

    star(
        lambda: sending(lambda _: [current_router().node_id]),
        lambda: [mw.receive("trajectories", at_least=2), look],
        roles=[{"learner", "collector"}, "collector"],
    )
    both = steps[[1 in step for step in steps].index(True) :]
    assert all(len(step) >= 2 for step in both)  # it waits once it has heard the other one


def test_the_staleness_of_received_items_is_reported() -> None:
    items = [SimpleNamespace(version=version) for version in (9, 5, 12)]
    send, receive = mw.send("trajectories", to="node.0"), mw.receive("trajectories")
    metrics = run_steps(
        make(lambda _: items), send, receive, steps=1, weights_version=9
    ).ctx.metrics
    assert metrics["staleness"] == (0 + 4) / 2  # that of a former learner's rollout is unknown
    assert metrics["received"] == 3
    assert metrics["send_wait_s"] >= 0.0
    assert metrics["receive_wait_s"] >= 0.0


def test_labels_that_no_node_has_are_refused_in_the_first_step() -> None:
    with pytest.raises(LabelError, match=r"`to=\['nod.0'\]`.*Did you mean .node.0"):
        run_step(mw.send("trajectories", to="nod.0"), trajectories=[1])
