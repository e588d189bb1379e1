"""The gradient server: each push is counted once, stale ones are refused, agents do not block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from ding_lite import middleware as mw
from ding_lite.distributed import GradientServer, World
from ding_lite.errors import ConfigError, RemoteError, ShapeError
from ding_lite.parallel.router import calls as rpc
from ding_lite.parallel.router.group import Group
from ding_lite.rl import A2C, A2CConfig, make_envs
from ding_lite.runtime.messaging.router import current_router
from ding_lite.runtime.task import Task
from ding_lite.testing import Cluster
from tests.middleware.running import run_job
from tests.parallel.tcp import wait_until

SPEC = make_envs("CartPole-v1", 1).spec
CONFIG = A2CConfig(hidden=(4,), lr=1e-2)


def make_policy() -> A2C:
    return A2C(SPEC, CONFIG)


def gradient(value: float = 1.0) -> torch.Tensor:
    size = sum(weights.numel() for weights in make_policy().weights().values())
    return torch.full((size,), value)


def applied(server: GradientServer, value: float = 1.0) -> bool:
    """Push a gradient; return whether it was applied."""
    receipt = server.push(gradient(value))
    assert receipt is not None
    return receipt.is_applied


class Job(Cluster):
    """A server's nodes first, then agents."""

    def __init__(
        self, num_servers: int = 1, num_agents: int = 2, kind: type[A2C] = A2C, **settings: Any
    ) -> None:
        super().__init__(num_servers + num_agents)
        self._make_server = lambda router: GradientServer(
            Group(router, tuple(range(num_servers))), kind(SPEC, CONFIG), **settings
        )
        made = [self._make_server(router) for router in self.routers]
        self.owner, self.servers, self.agents = made[0], made[:num_servers], made[num_servers:]

    def restart_owner(self) -> None:
        self.owner = self.servers[0] = self._make_server(self.restart(0))
        for router in self.routers:
            router.wait_ready(10.0)


MakeJob = Callable[..., Job]


@pytest.fixture
def make_job() -> Iterator[MakeJob]:
    """Return a function that makes jobs, which are closed after the test."""
    with ExitStack() as stack:
        yield lambda *args, **settings: stack.enter_context(Job(*args, **settings))


def weights_of(server: GradientServer) -> np.ndarray:
    policy = make_policy()
    server.copy_to(policy)
    return np.concatenate([weights.flatten() for weights in policy.weights().values()])


def test_a_push_is_one_optimiser_step_that_a_pull_loads(make_job: MakeJob) -> None:
    job, alone, here = make_job(), make_policy(), make_policy()
    agent = job.agents[0]
    assert agent.pull(here)
    receipt = agent.push(gradient(0.5))
    assert receipt is not None
    assert (receipt.is_applied, receipt.staleness, receipt.version) == (True, 0, 1)
    alone.apply_gradient(gradient(0.5))
    assert agent.pull(here)
    for name, weights in alone.weights().items():
        assert torch.equal(weights, here.weights()[name])
    assert not agent.pull(here)  # nothing is new


def test_a_pull_loads_into_each_policy_also_after_a_load_that_has_failed(make_job: MakeJob) -> None:
    [agent, _] = make_job().agents
    with pytest.raises(ShapeError):
        agent.pull(A2C(SPEC, A2CConfig(hidden=(5,))))
    one, other = make_policy(), make_policy()
    assert agent.pull(one)
    assert agent.pull(other)
    assert not agent.pull(other)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (gradient()[1:], "Is it of a network of the same size"),
        (gradient(float("nan")), "holds NaN or infinity"),
        (gradient().to(torch.complex64), "of torch.complex64; a dense tensor of floating-point"),
        (gradient().to(torch.int64), "of torch.int64; a dense"),
        (gradient().to_sparse(), "torch.sparse_coo of torch.float32; a dense"),
    ],
)
def test_an_invalid_gradient_is_an_error_also_where_it_is_stale(
    make_job: MakeJob, wrong: torch.Tensor, said: str
) -> None:
    job = make_job(max_staleness=0)
    first, second = job.agents
    first.pull(make_policy())
    first.push(gradient())
    assert not applied(second)
    with pytest.raises((ConfigError, RemoteError), match=said):
        second.push(wrong)
    assert (job.owner.num_applied, job.owner.num_refused) == (1, 1)


def test_a_gradient_may_be_half_precision(make_job: MakeJob) -> None:
    [agent, _] = make_job().agents
    agent.pull(make_policy())
    for dtype in (torch.bfloat16, torch.float16):
        receipt = agent.push(gradient().to(dtype))
        assert receipt is not None
        assert receipt.is_applied


def test_the_staleness_of_a_push_is_known_and_too_stale_a_push_changes_nothing(
    make_job: MakeJob,
) -> None:
    job = make_job(max_staleness=1)
    first, second = job.agents
    first.pull(make_policy())
    second.pull(make_policy())
    for _ in range(2):
        first.push(gradient())
        first.pull(make_policy())
    before = weights_of(job.owner)
    receipt = second.push(gradient())
    assert receipt is not None
    assert (receipt.is_applied, receipt.staleness) == (False, 2)
    np.testing.assert_array_equal(weights_of(job.owner), before)
    assert job.owner.take_stalenesses() == [0, 0, 2]
    assert job.owner.take_stalenesses() == []


@given(
    st.lists(
        st.tuples(st.sampled_from(["pull", "push", "push", "restart"]), st.integers(0, 2)),
        max_size=40,
    ),
    st.one_of(st.none(), st.integers(0, 3)),
)
@settings(deadline=None, max_examples=30)
def test_each_push_is_counted_once_as_applied_or_refused(
    deeds: list[tuple[str, int]], limit: int | None
) -> None:
    incarnation = version = 0
    pulled: dict[int, tuple[int, int]] = {}
    pushed = applied = refused = 0
    with Job(num_agents=3, max_staleness=limit) as job:
        for what, k in deeds:
            if what == "pull":
                job.agents[k].pull(make_policy())
                pulled[k] = incarnation, version
            elif what == "push":
                receipt = job.agents[k].push(gradient(0.1))
                is_known = k in pulled and pulled[k][0] == incarnation
                staleness = version - (pulled[k][1] if is_known else 0)
                is_applied = limit is None or (is_known and staleness <= limit)
                pushed += 1
                applied, refused, version = (
                    applied + is_applied,
                    refused + (not is_applied),
                    version + is_applied,
                )
                assert receipt is not None
                assert (receipt.is_applied, receipt.staleness) == (is_applied, staleness)
                assert receipt.version == version
            else:
                job.restart_owner()
                incarnation, version, pushed, applied, refused = incarnation + 1, 0, 0, 0, 0
            owner = job.owner
            counts = (owner.num_applied, owner.num_refused, owner.version)
            assert counts == (applied, refused, version)
        assert pushed == job.owner.num_applied + job.owner.num_refused


class Gated(A2C):
    """A policy that waits for a gate before each step."""

    gate: ClassVar[threading.Event] = threading.Event()

    def apply_gradient(self, grad_P: Any) -> float:
        assert self.gate.wait(10.0)
        return super().apply_gradient(grad_P)


@pytest.fixture
def reducing(make_job: MakeJob) -> MakeJob:
    """Return what makes a job in which a second node reduces the gradients of three agents."""
    Gated.gate.set()
    return lambda **settings: make_job(2, num_agents=3, kind=Gated, **settings)


@contextmanager
def busy_owner(job: Job) -> Iterator[tuple[Future[Any], Callable[..., Future[Any]]]]:
    """Let the owner work on a push of the first agent until the end of the block.

    It yields the answer to this push, and what lets another agent push as well, which returns once
    the reducer, which is busy, has its gradient.
    """
    reducer = job.servers[1]._reducer
    assert reducer is not None

    def push(agent: int, grad_P: torch.Tensor) -> Future[Any]:
        before = len(reducer._waiting)
        answer = pool.submit(job.agents[agent].push, grad_P)
        wait_until(lambda: len(reducer._waiting) > before, "a push at the reducer")
        return answer

    job.agents[0].pull(make_policy())
    Gated.gate.clear()
    with ThreadPoolExecutor(3) as pool:
        try:
            first = pool.submit(job.agents[0].push, gradient())
            wait_until(lambda: reducer._is_under_way, "the first push")
            yield first, push
        finally:
            Gated.gate.set()


def test_a_pull_does_not_wait_for_the_gradient_that_is_applied_meanwhile(reducing: MakeJob) -> None:
    job = reducing()
    with busy_owner(job), ThreadPoolExecutor(1) as pool:
        assert pool.submit(job.agents[1].pull, make_policy()).result(5.0)
        assert job.agents[1].pulled_version == 0


def test_a_reducer_forwards_the_mean_of_the_gradients_received_meanwhile(reducing: MakeJob) -> None:
    job, alone = reducing(), Gated(SPEC, CONFIG)
    for agent in job.agents:
        agent.pull(make_policy())
    with busy_owner(job) as (first, push):
        others = [push(1, gradient(0.2)), push(2, gradient(0.6))]
    receipts = [answer.result(10.0) for answer in (first, *others)]
    assert [(r.is_applied, r.staleness, r.version) for r in receipts] == [
        (True, 0, 1),
        (True, 1, 2),
        (True, 1, 2),
    ]
    assert (job.owner.num_applied, job.owner.version) == (3, 2)
    alone.apply_gradient(gradient())
    alone.apply_gradient(gradient(0.4))
    own = np.concatenate([weights.flatten() for weights in alone.weights().values()])
    np.testing.assert_allclose(weights_of(job.owner), own, rtol=1e-6)


def test_a_stale_gradient_at_a_reducer_does_not_affect_the_others(reducing: MakeJob) -> None:
    job = reducing(max_staleness=1)
    first, stale, fresh = job.agents
    stale.pull(make_policy())
    for _ in range(2):
        first.pull(make_policy())
        first.push(gradient())
    fresh.pull(make_policy())
    with busy_owner(job) as (_, push):
        answers = [push(k, gradient(0.1)) for k in (1, 2)]
    receipts = [answer.result(10.0) for answer in answers]
    assert [(r.is_applied, r.staleness) for r in receipts] == [(False, 3), (True, 1)]
    assert (job.owner.num_applied, job.owner.num_refused, job.owner.version) == (4, 1, 4)
    assert job.owner.take_stalenesses() == [0, 0, 0, 3, 1]


def test_a_program_that_does_not_ask_for_stalenesses_keeps_the_newest(
    make_job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ding_lite.distributed.gradient_server.MOST_STALENESSES", 3)
    job = make_job(num_agents=1)
    [agent] = job.agents
    agent.pull(make_policy())
    for _ in range(5):
        agent.push(gradient())
    assert job.owner.take_stalenesses() == [2, 3, 4]


def test_an_invalid_gradient_at_a_reducer_is_an_error_of_its_agent_only(reducing: MakeJob) -> None:
    job = reducing()
    with busy_owner(job) as (_, push):
        short, right = push(1, torch.ones(3)), push(2, gradient(0.1))
        with pytest.raises(RemoteError, match="holds NaN or infinity"):
            job.agents[1].push(gradient(float("nan")))
    assert right.result(10.0).is_applied
    with pytest.raises(RemoteError, match="Is it of a network of the same size"):
        short.result(10.0)
    assert (job.owner.num_applied, job.owner.num_refused) == (2, 0)


@pytest.mark.parametrize(
    "rest", [(0, gradient().numpy() * 1j), (np.zeros(2), gradient().numpy()), (0, ["x"])]
)
def test_a_malformed_push_to_a_reducer_does_not_affect_the_others(
    reducing: MakeJob, rest: Any
) -> None:
    job = reducing()
    with busy_owner(job) as (_, push):
        right = push(2, gradient(0.1))
        with pytest.raises(RemoteError, match="A push consists of"):
            job.agents[1]._server.call(1, "push", 0, *rest, until=lambda: False)
    assert right.result(10.0).is_applied
    assert applied(job.agents[2], 0.1)


def test_gradients_for_two_incarnations_are_not_averaged(reducing: MakeJob) -> None:
    job = reducing(max_staleness=10)
    job.agents[1].pull(make_policy())
    job.restart_owner()
    job.agents[2].pull(make_policy())
    with busy_owner(job) as (_, push):
        answers = [push(k, gradient(0.1)) for k in (1, 2)]
    assert [answer.result(10.0).is_applied for answer in answers] == [False, True]
    assert (job.owner.num_applied, job.owner.num_refused) == (2, 1)


def test_a_reducer_without_the_owner_answers_with_an_error_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpc, "REGISTRATION_S", 0.05)
    with Cluster(3, roles=["server", "server", "agent"]) as cluster:
        servers = [
            GradientServer(World(router).group([0, 1]), make_policy(), timeout=10.0)
            for router in cluster.routers
        ]
        agent = servers[2]
        agent.pull(make_policy())
        assert agent.push(gradient()) is not None
        router = cluster.restart(0)
        wait_until(lambda: 0 in cluster.routers[1].peers, "the owner is back")
        assert agent.push(gradient()) is None  # its new process has made no server yet
        GradientServer(World(router).group([0, 1]), make_policy())
        assert agent.push(gradient()) is not None

        cluster.network.remove(0)
        router.close(good_bye=False)
        assert agent.push(gradient()) is None
        assert agent.push(gradient()) is None


def test_a_server_goes_on_where_it_was_saved(make_job: MakeJob) -> None:
    job, later = make_job(), make_job(max_staleness=10)
    job.agents[0].pull(make_policy())
    for _ in range(3):
        job.agents[0].push(gradient(0.1))
    state = job.owner.state_dict()

    agent = later.agents[0]
    agent.pull(make_policy())
    assert applied(agent)
    later.owner.load_state_dict(state)
    np.testing.assert_array_equal(weights_of(later.owner), weights_of(job.owner))
    # What was pushed to the weights that are gone counts, and nothing that is of them will do.
    assert (later.owner.version, later.owner.num_applied, later.owner.num_refused) == (3, 3, 1)
    assert not applied(agent)
    assert agent.pull(make_policy())
    for server in (job.agents[0], agent):
        assert server.push(gradient(0.3)) is not None
    np.testing.assert_array_equal(weights_of(later.owner), weights_of(job.owner))  # Adam's, too
    with pytest.raises(ConfigError, match="does not own the weights"):
        agent.state_dict()
    with pytest.raises(ConfigError, match="does not own the weights"):
        agent.load_state_dict(state)


def test_a_server_that_goes_back_to_a_state_of_its_own_counts_each_push_once(
    make_job: MakeJob,
) -> None:
    job = make_job()
    owner, agent = job.owner, job.agents[0]
    agent.pull(make_policy())
    counts = []
    for _ in range(3):
        agent.push(gradient(0.1))
    state = owner.state_dict()
    for _ in range(2):
        agent.push(gradient(0.1))
        owner.load_state_dict(state)
        counts.append((owner.version, owner.num_applied, owner.num_refused))
    assert counts == [(3, 3, 1), (3, 3, 2)]

    other = make_job()
    other.agents[0].pull(make_policy())
    for _ in range(2):
        other.owner.load_state_dict(state)
        other.agents[0].push(gradient(0.1))
    other.owner.load_state_dict(state)
    assert (other.owner.num_applied, other.owner.num_refused) == (3, 2)


@pytest.mark.parametrize("num_servers", [1, 3])
def test_concurrent_pushes_are_each_applied_or_refused(num_servers: int) -> None:
    num_agents, num_pushes = 4, 25
    receipts: list[Any] = []

    def main() -> Any:
        world = World.current()
        server = GradientServer(world.group("server"), make_policy(), max_staleness=3)
        if "agent" in current_router().labels:
            for k in range(num_pushes):
                if k % 3 == 0:
                    server.pull(make_policy())
                receipts.append(server.push(gradient(0.1)))
        world.group("node.*").barrier()
        return server.num_applied, server.num_refused, server.version

    roles = num_servers * ["server"] + num_agents * ["agent"]
    with Cluster(num_servers + num_agents, roles=roles) as cluster:
        applied, refused, version = cluster.run(main, timeout=15.0)[0]
    assert applied + refused == num_agents * num_pushes == len(receipts)
    assert applied == sum(receipt.is_applied for receipt in receipts)
    assert refused > 0
    assert version <= applied  # several that were reduced are one update


def a3c() -> Any:
    """Run the form of A3C: the file is the same for one node and for many."""
    world = World.current()
    with make_envs("CartPole-v1", num_envs=2, seed=world.node_seed) as envs:
        policy = A2C(envs.spec, CONFIG)
        server = GradientServer(world.group("server"), policy)
        with Task() as task:
            agent, servers, owner = task.at("agent"), task.at("server"), task.at("server.0")
            agent.use(mw.pull_weights(policy, server))
            agent.use(mw.collect(policy, envs, unroll=8))
            agent.use(mw.push_gradients(policy, server))
            servers.use(mw.serve_gradients(policy, server, updates=5))
            owner.use(mw.stop_at(train_iter=40))
            task.at("evaluator").use(lambda ctx: task.wait_for("the end"))
            task.run()
    return task.ctx.get("train_iter", 0), server.num_applied, dict(task.ctx.metrics)


@pytest.mark.parametrize(
    "roles",
    [
        [{"server", "agent"}],
        [{"server", "agent"}, "evaluator"],
        ["server", "agent", "agent"],
        ["server", "server", "agent", "agent"],
        3 * [{"server", "agent"}],
    ],
    ids=["one node", "one and an evaluator", "three nodes", "a reducer", "all reduce"],
)
def test_a3c_runs_as_a_pipeline(roles: list[Any]) -> None:
    with Cluster(len(roles), roles=roles) as cluster:
        results = cluster.run(a3c, timeout=15.0)
    train_iter, applied, metrics = results[0]
    assert train_iter >= 40
    assert applied >= 40
    assert metrics["gradients_applied"] <= applied
    assert {"staleness", "gradients_refused"} <= metrics.keys()


def test_serve_gradients_waits_for_pushes_and_ends_with_the_job() -> None:
    is_waiting, policy = threading.Event(), make_policy()

    def wait(ctx: Any) -> None:
        ctx.finish = is_waiting.wait(10.0)

    def learner() -> list[Any]:
        server = GradientServer(World.current().group("server"), policy)
        return [lambda ctx: is_waiting.set(), mw.serve_gradients(policy, server)]

    run_job(["server", "agent"], server=learner, agent=lambda: [wait])
