"""Moving what collectors have made to learners: bounded, to exactly one, and to an end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ding_lite import middleware as mw
from ding_lite.errors import DeadlineExceeded, LabelError
from ding_lite.rl import IMPALA, IMPALAConfig, make_envs
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.local_router import LocalRouter
from ding_lite.runtime.messaging.router import use_router
from ding_lite.runtime.task import Task
from ding_lite.testing import Cluster, run_step
from tests.middleware.running import run_steps


def make(number: Callable[[Context], Any]) -> Callable[[Context], None]:
    """Make a middleware that puts on the ctx what `number` says."""

    def _make(ctx: Context) -> None:
        ctx.trajectories = number(ctx)

    return _make


def star(main: Callable[[], Any], *, collectors: int = 1) -> list[Any]:
    with Cluster(1 + collectors, "star", roles=["learner"] + collectors * ["collector"]) as cluster:
        return cluster.run(main, timeout=15.0)


def test_each_element_of_a_list_arrives_once_and_in_order() -> None:
    def main() -> list[int]:
        seen: list[int] = []

        def look(ctx: Context) -> None:
            seen.extend(ctx.trajectories)
            ctx.finish = len(seen) >= 40

        with Task() as task:
            collector, learner = task.at("collector"), task.at("learner")
            collector.use(make(lambda ctx: [2 * ctx.total_step, 2 * ctx.total_step + 1]))
            collector.use(mw.send("trajectories", to="learner"))
            learner.use(mw.receive("trajectories")).use(look)
            task.run()
        return seen

    learner, collector = star(main)
    assert learner == [*range(len(learner))]
    assert collector == []


def test_a_value_that_is_no_list_is_one_item_and_leaves_the_ctx() -> None:
    def main() -> Any:
        with Task() as task:
            task.use(make(lambda _: {"obs": 3.0}), "collector")
            task.use(mw.send("trajectories", to="learner"), "collector")
            task.use(mw.receive("trajectories"), "learner")
            task.run(max_step=1)
        return task.ctx.get("trajectories")

    assert star(main) == [[{"obs": 3.0}], None]


def test_rollouts_of_a_policy_with_memory_bring_the_states_before_their_first_step() -> None:
    def main() -> list[tuple[tuple[int, ...], bool]]:
        envs = make_envs("CartPole-v1", 2, seed=0)
        config = IMPALAConfig(memory="lstm", memory_size=4, hidden=(8,))
        policy = IMPALA(envs.spec, config)
        found: list[tuple[tuple[int, ...], bool]] = []

        def look(ctx: Context) -> None:
            found.extend((one.state.shape, bool(one.state.any())) for one in ctx.trajectories)
            ctx.finish = len(found) >= 3

        with Task() as task:
            collector, learner = task.at("collector"), task.at("learner")
            collector.use(mw.collect(policy, envs, unroll=4))
            collector.use(mw.send("trajectories", to="learner"))
            learner.use(mw.receive("trajectories", at_most=1)).use(mw.train(policy)).use(look)
            task.run()
        return found

    learner, _ = star(main)
    assert learner == [((2, 16), False), ((2, 16), True), ((2, 16), True)]


def test_a_step_waits_for_enough_and_takes_no_more_than_it_may() -> None:
    def main() -> list[int]:
        sizes: list[int] = []
        with Task() as task:
            task.use(make(lambda _: [0, 1, 2]), "collector")
            task.use(mw.send("trajectories", to="learner", in_flight=20), "collector")
            task.use(mw.receive("trajectories", at_least=4, at_most=5), "learner")
            task.use(lambda ctx: sizes.append(len(ctx.trajectories)), "learner")
            task.use(lambda ctx: len(sizes) >= 20 and setattr(ctx, "finish", True), "learner")
            task.run()
        return sizes

    sizes = star(main, collectors=2)[0]
    assert set(sizes[:20]) <= {4, 5}


def test_a_collector_is_never_more_than_in_flight_ahead_of_a_slow_learner() -> None:
    sent, steps = [0], threading.Semaphore(0)

    def main() -> list[int]:
        ahead: list[int] = []

        def count(ctx: Context) -> None:
            sent[0] += 1
            steps.release()

        def learn(ctx: Context) -> None:
            # Each step begins only when the collector has done all that it can.
            for _ in range(3 if ctx.total_step == 0 else 1):
                assert steps.acquire(timeout=10.0)
            ahead.append(sent[0] - ctx.total_step)
            ctx.finish = ctx.total_step >= 50

        with Task() as task:
            collector, learner = task.at("collector"), task.at("learner")
            collector.use(make(lambda ctx: [ctx.total_step])).use(count)
            collector.use(mw.send("trajectories", to="learner", in_flight=2))
            learner.use(learn).use(mw.receive("trajectories", at_most=1))
            task.run()
        return ahead

    ahead = star(main)[0]
    # Two wait at the learner, and the collector holds one for which there is no room.
    assert max(ahead) == 3


def test_a_slow_collector_makes_the_learner_wait_and_not_spin() -> None:
    go = threading.Semaphore(0)

    def main() -> int:
        def collect(ctx: Context) -> None:
            assert go.acquire(timeout=10.0)
            ctx.trajectories = [ctx.total_step]

        with Task() as task:
            task.use(collect, "collector")
            task.use(mw.send("trajectories", to="learner"), "collector")
            task.use(lambda ctx: go.release(), "learner")
            task.use(mw.receive("trajectories"), "learner")
            task.run(max_step=20)
        return task.ctx.total_step

    assert star(main) == [19, 19]


@pytest.mark.parametrize("who", ["learner", "collector"])
def test_waits_end_with_the_job(who: str) -> None:
    is_waiting = threading.Event()

    def main() -> str:
        def wait_for_the_other(ctx: Context) -> None:
            assert is_waiting.wait(10.0)
            ctx.finish = True

        def say(ctx: Context) -> None:
            if who == "learner" or ctx.total_step == 2:  # the third has no room
                is_waiting.set()

        with Task() as task:
            task.use(make(lambda _: [0]), "collector")
            if who == "learner":
                task.use(say, "learner").use(mw.receive("trajectories"), "learner")
                task.use(wait_for_the_other, "collector")
            else:
                task.use(say, "collector").use(mw.send("trajectories", to="learner"), "collector")
                task.use(wait_for_the_other, "learner")
            task.run()
        return "ended"

    assert star(main) == ["ended", "ended"]


def test_a_wait_without_a_peer_is_an_error_that_names_the_stream() -> None:
    def main() -> None:
        with Task() as task:
            task.use(mw.receive("trajectories", timeout=0.05), "learner")
            task.use(lambda _: task.wait_for("nothing"), "collector")
            task.run()

    with pytest.raises(DeadlineExceeded, match="No item of stream `trajectories` came"):
        star(main)


def test_the_same_file_runs_in_one_process_and_waits_for_enough_over_several_steps() -> None:
    def main() -> list[list[int]]:
        seen = []
        with Task() as task:
            collector, learner = task.at("collector"), task.at("learner")
            collector.use(make(lambda ctx: [ctx.total_step]))
            collector.use(mw.send("trajectories", to="learner", in_flight=1))
            learner.use(mw.receive("trajectories", at_least=3))
            learner.use(lambda ctx: seen.append(ctx.trajectories))
            task.run(max_step=7)
        return seen

    with Cluster(1, roles=[{"learner", "collector"}]) as cluster:
        assert cluster.run(main) == [[[], [], [0, 1, 2], [], [], [3, 4, 5], []]]


def test_in_one_process_the_learner_may_come_before_the_collector() -> None:
    received = []
    run_steps(
        mw.receive("work", timeout=0.0),
        lambda ctx: received.append(ctx.work),
        lambda ctx: ctx.update(work=ctx.total_step),
        mw.send("work", to="node.0", timeout=0.0),
        steps=3,
    )
    assert received == [[], [0], [1]]
    with pytest.raises(DeadlineExceeded, match="No item of stream `nothing` came"):
        run_steps(mw.receive("nothing", timeout=0.0), steps=2)


def test_a_learner_that_sends_to_itself_does_not_wait_beside_an_evaluator() -> None:
    learner, _ = LocalRouter.group(2, roles=[{"learner", "collector"}, "evaluator"])
    received = []
    with use_router(learner):
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
    def main() -> list[list[int]]:
        steps: list[list[int]] = []
        with Task() as task:
            task.use(make(lambda _: [task.router.node_id]), "collector")
            task.use(mw.send("trajectories", to="learner"), "collector")
            task.use(mw.receive("trajectories", at_least=2), "learner")
            task.use(lambda ctx: steps.append(ctx.trajectories), "learner")
            task.use(lambda ctx: setattr(ctx, "finish", sum(map(sum, steps)) >= 10), "learner")
            task.run()
        return steps

    with Cluster(2, roles=[{"learner", "collector"}, "collector"]) as cluster:
        steps, _ = cluster.run(main, timeout=15.0)
    both = steps[[1 in step for step in steps].index(True) :]
    assert all(len(step) >= 2 for step in both)  # it waits once it has heard the other one


def test_the_staleness_of_received_items_is_reported() -> None:
    items = [SimpleNamespace(version=version) for version in (9, 5, 12)]
    send, receive = mw.send("trajectories", to="node.0"), mw.receive("trajectories")
    metrics = run_steps(
        make(lambda _: items), send, receive, steps=1, weights_version=9
    ).ctx.metrics
    assert metrics["staleness"] == 4 / 3  # one from a former life of the learner is not stale
    assert metrics["received"] == 3
    assert metrics["send_wait_s"] >= 0.0
    assert metrics["receive_wait_s"] >= 0.0


def test_labels_that_no_node_has_are_refused_in_the_first_step() -> None:
    with pytest.raises(LabelError, match=r"`to=\['nod.0'\]`.*Did you mean .node.0"):
        run_step(mw.send("trajectories", to="nod.0"), trajectories=[1])


def test_a_stream_is_of_this_node_also_without_a_job() -> None:
    with use_router(LocalRouter()):
        run_step(mw.send("trajectories", to="node.0"), trajectories=[1])
        ctx, _ = run_step(mw.receive("trajectories"))
    assert ctx.trajectories == [1]
