"""Weights on their way from a learner to collectors: newest wins, versions count, waits end."""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ding_lite import middleware as mw
from ding_lite.distributed.model_server import topics_of
from ding_lite.errors import DeadlineExceeded, ShapeError
from ding_lite.middleware.distributed.weights import SERVER
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.rl import DQN, DQNConfig, make_envs
from ding_lite.runtime import Context, Middleware, Task, current_router, use_router
from ding_lite.testing import Cluster, run_step
from tests.middleware.running import run_job, run_steps
from tests.nodes import delivered
from tests.threads import together

CONFIG = DQNConfig(hidden=(4,), n_step=1, batch_size=8)
SPEC = make_envs("CartPole-v1", 1).spec


def make_dqn(value: float | None = None, config: DQNConfig = CONFIG) -> DQN:
    policy = DQN(SPEC, config)
    if value is not None:
        fill(policy, value)
    return policy


def fill(policy: DQN, value: float) -> None:
    policy.load_weights({name: w.fill_(value) for name, w in policy.weights().items()})


def value_of(policy: DQN) -> float:
    values = torch.cat([w.flatten() for w in policy.weights().values()])
    assert (values == values[0]).all()
    return float(values[0])


def train(policy: DQN) -> Callable[[Context], None]:
    """Stand in for updates: the weights say how many there were."""

    def _train(ctx: Context) -> None:
        ctx.train_iter = ctx.get("train_iter", 0) + 1
        ctx.keep("train_iter")
        fill(policy, float(ctx.train_iter))

    return _train


def wait_for_the_end(ctx: Context) -> None:
    current_router().subscribe().wait(lambda _: ctx.finish, timeout=10.0)


def test_collectors_begin_with_the_learners_weights_and_end_with_its_newest() -> None:
    seen: list[tuple[float, int]] = []

    def learner() -> list[Middleware]:
        policy = make_dqn(0.5)

        def wait(ctx: Context) -> None:
            if ctx.total_step >= 20:
                wait_for_the_end(ctx)

        return [wait, train(policy), mw.publish_weights(policy)]

    def collector() -> list[Middleware]:
        policy = make_dqn()

        def look(ctx: Context) -> None:
            version, last = ctx.weights_version, seen[-1][1] if seen else -1
            if version > last and "weights_behind" in ctx.metrics:
                seen.append((value_of(policy), version))
            ctx.finish = bool(seen) and seen[-1][0] == 20.0

        return [mw.fetch_weights(policy), look]

    run_job(["learner", "collector"], learner=learner, collector=collector)
    assert seen[-1] == (20.0, 20)
    assert all(value == (version or 0.5) for value, version in seen)
    assert [version for _, version in seen] == sorted({version for _, version in seen})


def test_every_nth_step_is_a_version_and_only_what_has_learned_is_new() -> None:
    published: list[int] = []
    policy = make_dqn()
    run_steps(
        lambda ctx: ctx.total_step % 2 or train(policy)(ctx),
        mw.publish_weights(policy, every=2),
        lambda ctx: published.append(ctx.weights_version),
        steps=6,
    )
    assert published == [0, 1, 1, 2, 2, 3]
    ctx, _ = run_step(mw.publish_weights(policy, every=1))
    assert ctx.weights_version == 1


def test_versions_go_on_where_a_resumed_run_left_off() -> None:
    policy = make_dqn()

    def make_task() -> Task:
        return Task().use(train(policy)).use(mw.publish_weights(policy))

    first, second = make_task(), make_task()
    first.run(max_step=3)
    second.load_state_dict(first.state_dict())
    second.run(max_step=2)
    assert second.ctx.weights_version == 5


def publish(router: NodeRouter, version: list[int], *, weights: Any = None) -> None:
    """Publish a version by hand, and return once the other nodes have it."""
    announced, published = topics_of(SERVER)
    router.publish(announced, version)
    if weights is not None:
        router.publish(published, {"number": version, "weights": weights})
    router.publish_ctx({"weights_version": version[1]})
    delivered(router)


def fetching(
    announce: Callable[[NodeRouter], None],
    *,
    steps: int = 1,
    policy: DQN | None = None,
    **settings: Any,
) -> tuple[Context, DQN]:
    """Fetch on a node after another one has published by hand; return the last ctx."""
    policy = policy or make_dqn(0.0)
    with Cluster(2) as cluster, use_router(cluster.routers[1]):
        announce(cluster.routers[0])
        return run_steps(mw.fetch_weights(policy, **settings), steps=steps).ctx, policy


def test_unchanged_weights_are_not_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, loads = make_dqn(0.0), list[Any]()
    monkeypatch.setattr(policy, "load_weights", loads.append)
    ctx, _ = fetching(lambda to: publish(to, [7, 1], weights=ones()), steps=10, policy=policy)
    assert (len(loads), ctx.weights_version) == (1, 1)


def ones() -> dict[str, Tensor]:
    return {name: torch.ones_like(w) for name, w in make_dqn().weights().items()}


def test_weights_within_the_limit_are_used_and_their_age_is_reported() -> None:
    def announce(router: NodeRouter) -> None:
        publish(router, [7, 6], weights=ones())
        publish(router, [7, 10])

    ctx, policy = fetching(announce, max_staleness=4)
    assert (ctx.weights_version, ctx.metrics["weights_behind"], value_of(policy)) == (6, 4, 1.0)
    ctx, _ = fetching(lambda router: publish(router, [7, 3]))  # announced, and not there yet
    assert (ctx.weights_version, "weights_behind" in ctx.metrics) == (0, False)


@pytest.mark.parametrize(
    ("newest", "settings", "fault"),
    [
        (10, {"max_staleness": 4}, r"Version 10 .* only 5 has come within 0.05 s"),
        (5, {"wait_for_new": True, "steps": 2}, r"newer than 5 has arrived within 0.05 s"),
    ],
)
def test_weights_that_are_waited_for_in_vain_are_an_error(newest, settings, fault: str) -> None:
    def announce(router: NodeRouter) -> None:
        publish(router, [7, 5], weights=ones())
        publish(router, [7, newest])

    with pytest.raises(DeadlineExceeded, match=fault):
        fetching(announce, timeout=0.05, **settings)


def waiting_for(
    meanwhile: Callable[[NodeRouter, Context], None], **settings: Any
) -> tuple[Context, DQN]:
    """Fetch what was only announced; `meanwhile` gets the learner and the ctx of that step."""
    policy, waiting = make_dqn(0.0), Queue[Context]()
    with Cluster(2) as cluster:
        learner, collector = cluster.routers
        publish(learner, [7, 3])

        def fetch() -> Context:
            with use_router(collector):
                fetch = mw.fetch_weights(policy, max_staleness=0, **settings)
                return run_steps(waiting.put, fetch, steps=1).ctx

        ctx, _ = together(fetch, lambda: meanwhile(learner, waiting.get(timeout=10.0)))
    return ctx, policy


def test_weights_that_were_announced_are_waited_for_until_they_come() -> None:
    ctx, policy = waiting_for(lambda learner, ctx: publish(learner, [7, 3], weights=ones()))
    assert (ctx.weights_version, value_of(policy)) == (3, 1.0)


def test_a_wait_for_weights_ends_with_the_job() -> None:
    def end(learner: NodeRouter, ctx: Context) -> None:
        with use_router(learner):
            run_steps(lambda ctx: setattr(ctx, "finish", True))

    _, policy = waiting_for(end, timeout=None)
    assert value_of(policy) == 0.0


def test_an_evaluator_may_wait_for_a_new_version_in_each_step() -> None:
    policy, seen = make_dqn(), list[int]()

    def look(ctx: Context) -> None:
        seen.append(ctx.weights_version)
        ctx.finish = len(seen) == 5

    run_job(
        ["learner", "evaluator"],
        learner=lambda: [train(policy), mw.publish_weights(policy)],
        evaluator=lambda: [mw.fetch_weights(make_dqn(), wait_for_new=True), look],
    )
    assert len(seen) == 5
    assert seen == sorted(set(seen))


def test_a_node_that_is_alone_or_publishes_itself_waits_for_no_version() -> None:
    ctx, _ = run_step(mw.fetch_weights(make_dqn(), wait_for_new=True, timeout=None))
    assert ctx.weights_version == 0
    with Cluster(2) as cluster, use_router(cluster.routers[0]):
        run_steps(
            mw.publish_weights(make_dqn()),
            mw.fetch_weights(make_dqn(), wait_for_new=True, timeout=0.0),
            steps=2,
        )


def test_a_step_between_two_looks_is_taken_with_the_weights_at_hand() -> None:
    seen: list[int] = []
    with Cluster(2) as cluster, use_router(cluster.routers[1]):
        run_steps(
            lambda ctx: publish(cluster.routers[0], [7, ctx.total_step], weights=ones()),
            mw.fetch_weights(make_dqn(), every=3),
            lambda ctx: seen.append(ctx.weights_version),
            steps=7,
        )
    assert seen == [0, 0, 0, 3, 3, 3, 6]


def test_half_the_bytes_may_travel_but_not_of_sums_of_squares() -> None:
    config = DQNConfig(hidden=(4,), batch_size=8, normalize_obs=True)
    sent, got = make_dqn(config=config), make_dqn(config=config)
    weights = sent.weights()
    for name, tensor in weights.items():
        tensor.fill_(1e6 if name.startswith("norm") else 1.0 / 3.0)
    sent.load_weights(weights)

    def look(ctx: Context) -> None:
        ctx.finish = "weights_behind" in ctx.metrics

    run_job(
        ["learner", "collector"],
        learner=lambda: [mw.publish_weights(sent, half=True), wait_for_the_end],
        collector=lambda: [mw.fetch_weights(got), look],
    )
    values = {name: np.unique(w.numpy()) for name, w in got.weights().items()}
    assert values["norm.squares"] == [1e6]
    of_network = {float(v[0]) for name, v in values.items() if not name.startswith("norm")}
    assert of_network == {float(np.float16(1.0 / 3.0))}


def test_weights_of_another_network_are_refused() -> None:
    other = make_dqn(config=DQNConfig(hidden=(5,))).weights()
    with pytest.raises(ShapeError, match="these weights have"):
        fetching(lambda router: publish(router, [7, 3], weights=other))


def test_in_one_process_the_policy_is_the_learners_own() -> None:
    policy, seen = make_dqn(), list[int]()
    run_job(
        [{"learner", "collector"}],
        steps=3,
        collector=lambda: [
            mw.fetch_weights(policy, max_staleness=0),
            lambda ctx: seen.append(ctx.weights_version),
        ],
        learner=lambda: [train(policy), mw.publish_weights(policy)],
    )
    assert seen == [0, 1, 2]
