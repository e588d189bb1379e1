"""Gradients pushed from afar: each counted once, none too stale, nobody held up."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite import middleware as mw
from ding_lite.distributed import GradientServer, World
from ding_lite.errors import ConfigError, DeadlineExceeded, RemoteError
from ding_lite.parallel.group import Group
from ding_lite.rl import A2C, DQN, A2CConfig, make_envs
from ding_lite.runtime.local_router import LocalRouter
from ding_lite.runtime.router import current_router
from ding_lite.runtime.task import Task
from ding_lite.testing import Cluster

SPEC = make_envs("CartPole-v1", 1).spec
CONFIG = A2CConfig(hidden=(4,), lr=1e-2)


def make_policy() -> A2C:
    return A2C(SPEC, CONFIG)


def gradient(value: float = 1.0) -> torch.Tensor:
    size = sum(weights.numel() for weights in make_policy().weights().values())
    return torch.full((size,), value)


class Job:
    """A server's nodes first, then agents, in one process; calls are answered at once."""

    def __init__(self, num_servers: int = 1, num_agents: int = 2, **settings: Any) -> None:
        routers = LocalRouter.group(num_servers + num_agents)
        nodes = tuple(range(num_servers))
        made = [GradientServer(Group(r, nodes), make_policy(), **settings) for r in routers]
        self.owner, self.agents = made[0], made[num_servers:]
        self.routers = routers


def weights_of(server: GradientServer) -> np.ndarray:
    policy = make_policy()
    server.copy_to(policy)
    return np.concatenate([weights.flatten() for weights in policy.weights().values()])


def test_a_push_is_one_step_of_the_optimiser_and_a_pull_brings_it() -> None:
    job, alone, here = Job(), make_policy(), make_policy()
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


def test_the_staleness_of_a_push_is_the_number_of_updates_since_its_weights() -> None:
    job = Job()
    first, second = job.agents
    first.pull(make_policy())
    second.pull(make_policy())
    for _ in range(3):
        first.push(gradient())
        first.pull(make_policy())
    receipt = second.push(gradient())
    assert receipt is not None
    assert receipt.staleness == 3
    assert job.owner.take_stalenesses() == [0, 0, 0, 3]
    assert job.owner.take_stalenesses() == []


def test_too_stale_a_push_is_refused_changes_nothing_and_is_counted() -> None:
    job = Job(max_staleness=1)
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
    assert (job.owner.num_applied, job.owner.num_refused) == (2, 1)
    second.pull(make_policy())
    assert second.push(gradient()).is_applied  # type: ignore[union-attr]


def test_a_gradient_of_a_former_life_of_the_server_is_refused_where_age_matters() -> None:
    job = Job(max_staleness=100)
    agent = job.agents[0]
    agent.pull(make_policy())
    GradientServer(Group(job.routers[0], (0,)), make_policy(), max_staleness=100)
    receipt = agent.push(gradient())
    assert receipt is not None
    assert not receipt.is_applied
    assert agent.pull(make_policy())
    assert agent.push(gradient()).is_applied  # type: ignore[union-attr]


@pytest.mark.parametrize("num_servers", [1, 3])
def test_every_push_is_applied_or_refused_whatever_comes_at_once(num_servers: int) -> None:
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


def test_an_agent_that_dies_harms_nobody() -> None:
    with Cluster(3, roles=["server", "agent", "agent"]) as cluster:
        server, dead, agent = (
            GradientServer(World(router).group([0]), make_policy()) for router in cluster.routers
        )
        dead.pull(make_policy())
        dead.push(gradient())
        cluster.restart(1)
        agent.pull(make_policy())
        assert agent.push(gradient()).is_applied  # type: ignore[union-attr]
        assert server.num_applied == 2


def test_an_agent_waits_for_a_server_that_is_gone_until_it_is_told_or_in_time() -> None:
    with Cluster(2, roles=["server", "agent"]) as cluster:
        group = World(cluster.routers[1]).group([0])
        agent = GradientServer(group, make_policy(), timeout=0.1)
        GradientServer(World(cluster.routers[0]).group([0]), make_policy())
        assert agent.pull(make_policy())
        cluster.network.remove(0)
        cluster.routers[0].close(good_bye=False)
        agent.push(gradient(), until=lambda: True)
        assert agent.push(gradient(), until=lambda: True) is None
        with pytest.raises(DeadlineExceeded, match="Node 0, of the gradient server"):
            agent.pull(make_policy())


def test_gradients_of_another_network_are_refused_with_what_is_wrong() -> None:
    with Cluster(2) as cluster:
        GradientServer(World(cluster.routers[0]).group([0]), make_policy())
        agent = GradientServer(World(cluster.routers[1]).group([0]), make_policy())
        with pytest.raises(RemoteError, match="Is it of a network of the same size"):
            agent.push(torch.ones(3))


def test_what_cannot_be_improved_from_afar_is_refused() -> None:
    group = Group(LocalRouter(), (0,))
    with pytest.raises(ConfigError, match="it has no `apply_gradient`"):
        GradientServer(group, DQN(SPEC))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="it has no `gradients`"):
        mw.push_gradients(DQN(SPEC), GradientServer(group, make_policy()))
    with pytest.raises(ConfigError, match="max_staleness"):
        GradientServer(group, make_policy(), max_staleness=-1)
    owner, agent = LocalRouter.group(2)
    GradientServer(Group(owner, (0,)), make_policy())
    with pytest.raises(ConfigError, match="Node 1 does not own the weights"):
        GradientServer(Group(agent, (0,)), make_policy()).copy_to(make_policy())


def a3c() -> Any:
    """Run the form of A3C: the file is the same for one node and for many."""
    world = World.current()
    with make_envs("CartPole-v1", num_envs=2, seed=world.node_seed) as envs:
        policy = A2C(envs.spec, CONFIG)
        server = GradientServer(world.group("server"), policy)
        with Task() as task:
            agent, owner = task.at("agent"), task.at("server.0")
            agent.use(mw.pull_weights(policy, server))
            agent.use(mw.collect(policy, envs, unroll=8))
            agent.use(mw.push_gradients(policy, server))
            owner.use(mw.serve_gradients(policy, server, updates=5))
            owner.use(mw.stop_at(train_iter=40))
            task.run()
    return task.ctx.get("train_iter", 0), server.num_applied, dict(task.ctx.metrics)


@pytest.mark.parametrize(
    "roles", [[{"server", "agent"}], ["server", "agent", "agent"]], ids=["one node", "three nodes"]
)
def test_a3c_runs_as_a_pipeline(roles: list[Any]) -> None:
    with Cluster(len(roles), roles=roles) as cluster:
        results = cluster.run(a3c, timeout=15.0)
    train_iter, applied, metrics = results[0]
    assert train_iter >= 40
    assert applied >= 40
    assert metrics["gradients_applied"] <= applied
    assert {"staleness", "gradients_refused"} <= metrics.keys()


def test_who_serves_waits_for_pushes_and_ends_with_the_job() -> None:
    is_waiting = threading.Event()

    def main() -> int:
        world = World.current()
        policy = make_policy()
        server = GradientServer(world.group("server"), policy)
        with Task() as task:
            task.use(lambda ctx: is_waiting.set(), "server")
            task.use(mw.serve_gradients(policy, server), "server")
            task.use(lambda ctx: is_waiting.wait(10.0) and setattr(ctx, "finish", True), "agent")
            task.run()
        return task.ctx.total_step

    with Cluster(2, roles=["server", "agent"]) as cluster:
        cluster.run(main, timeout=15.0)
