"""Membership of an elastic job: places, joining nodes, and the roster of the others."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ding_lite.clock import Deadline
from ding_lite.errors import ConfigError, DeadlineExceeded, LabelError, PeerLost, RemoteError
from ding_lite.parallel.launch import membership
from ding_lite.parallel.launch.join import join, joining_node
from ding_lite.parallel.launch.membership import ROSTER, ElasticRouter, read_roster
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.network.address import LOOPBACK, free_ports
from ding_lite.parallel.network.security import make_key
from ding_lite.parallel.network.topology import Growth, NodeSpec, edges
from ding_lite.parallel.router.group import World
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.messaging.inbox import FINISH
from tests.parallel.tcp import Recorder, hub_spec, leaf_spec, wait_until
from tests.threads import together


class Job:
    """An elastic job with the first nodes 0 and 1, all in this process."""

    def __init__(self, topology: str = "star", first_id: int = 2) -> None:
        [port] = free_ports(LOOPBACK, 1)
        self.rendezvous = f"tcp://{LOOPBACK}:{port}"
        self.routers: dict[int, NodeRouter] = {}
        self._growth = Growth(topology, first_id)
        self.enter_hub()
        spec = leaf_spec(1, self.rendezvous, 2, growth=self._growth, edges=edges(topology, 2))
        labels = frozenset({"distributed", "node.1", "collector", "collector.0"})
        listen = f"tcp://{LOOPBACK}:0" if topology == "mesh" else None
        self.enter(replace(spec, labels=labels, listen=listen))

    def enter_hub(self) -> None:
        spec = hub_spec(2, listen=self.rendezvous, growth=self._growth, edges=edges("star", 2))
        world = frozenset({"distributed", "node.0", "learner"}), frozenset({"node.1", "collector"})
        self.enter(replace(spec, labels=world[0], world=world))

    def enter(self, spec: NodeSpec) -> NodeRouter:
        spec = replace(spec, incarnation=time.time_ns(), startup_timeout=10.0)
        router = self.routers[spec.node_id] = ElasticRouter(spec)
        if spec.node_id:
            router.wait_ready()
        return router

    def ask(self, requested_id: int | None = None, **more: Any) -> NodeSpec:
        plan = JobPlan(num_nodes=1, startup_timeout=10.0)
        more = {"roles": ["collector"], "labels": [], "listen": f"tcp://{LOOPBACK}:0", **more}
        return join(self.rendezvous, requested_id=requested_id, plan=plan, **more)

    def grow(self, requested_id: int | None = None, **more: Any) -> NodeRouter:
        return self.enter(self.ask(requested_id, **more))

    def leave(self, node: int, *, good_bye: bool = True) -> None:
        self.routers.pop(node).close(good_bye=good_bye)

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait for a condition on node 0."""
        changed = self.routers[0].links.changed
        with changed:
            assert Deadline.after(10.0).wait(changed, ready)

    def wait_everywhere(self, ready: Callable[[Sequence[frozenset[str]]], bool]) -> None:
        """Wait until each node knows labels of all nodes for which a condition holds."""
        wait_until(lambda: all(ready(router.world) for router in self.routers.values()))


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Return a factory of jobs that are closed after the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    jobs: list[Job] = []

    def begin(*settings: Any) -> Job:
        jobs.append(Job(*settings))
        return jobs[-1]

    yield begin
    for each in jobs:
        for node in sorted(each.routers, reverse=True):
            each.leave(node)


def test_the_logged_address_of_node_0_is_one_to_connect_to(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", "ding_lite")
    key = str(make_key(tmp_path / "key"))
    spec = hub_spec(1, listen="tcp://0.0.0.0:0", key_file=key, growth=Growth("star", 1))
    router = ElasticRouter(spec)
    router.close()
    port = str(router.address).rpartition(":")[2]
    where = f"tcp://{socket.gethostname()}:{port}"
    assert f"further nodes join by DING_LITE_ATTACH_TO={where}" in caplog.messages


def test_a_joining_node_gets_the_next_id_and_the_next_number_of_its_role(job: Any) -> None:
    here = job()
    spec = here.ask(labels=["gpu"])
    assert (spec.node_id, spec.num_nodes, spec.has_joined) == (2, 2, True)
    assert spec.labels == {"distributed", "node.2", "collector", "collector.1", "gpu"}
    assert (spec.listen, dict(spec.dials), set(spec.peers)) == (None, {0: here.rendezvous}, {0})
    router = here.enter(spec)
    assert [bool(labels) for labels in router.world] == [True, True, True]
    assert "collector.0" in router.world[1]  # to which it is not connected
    assert here.routers[0].peers == (1, 2)


def test_the_place_of_a_node_that_left_is_reused(job: Any) -> None:
    here = job()
    for _ in range(3):
        assert here.grow().node_id == 2
        assert here.grow().node_id == 3
        here.leave(3)
        here.leave(2)
        here.wait(lambda: not any(here.routers[0].world[2:]))  # noted after they are no peers
    assert here.routers[0].peers == (1,)
    assert World(here.routers[0]).num_nodes == 2


def test_only_the_newcomer_dials_where_another_node_takes_a_freed_place(job, monkeypatch) -> None:
    here = job("mesh")
    here.grow()
    dialled: list[int] = []
    links = here.grow().links  # of node 3, which has dialled node 2
    here.leave(2)
    here.wait(lambda: not here.routers[0].world[2])
    spec = here.ask(requested_id=7)
    assert sorted(spec.dials) == [0, 1, 3]
    here.enter(spec)
    monkeypatch.setattr(links, "redial", lambda node, address: dialled.append(node))
    assert here.grow().node_id == 2
    here.routers[0].call(3, ROSTER, {}, {}, timeout=10.0)  # after all that node 0 has sent before
    assert dialled == []


def test_the_place_of_a_lost_node_is_reserved_for_the_grace_period(job, monkeypatch) -> None:
    here = job()
    hub = here.routers[0]
    recorders = [Recorder(hub), Recorder(here.routers[1])]
    here.grow()
    here.leave(2, good_bye=False)
    recorders[0].wait(lambda: (2, "node_lost", (2,)) in recorders[0].events)
    assert here.grow().node_id == 3
    monkeypatch.setattr(membership, "LOST_GRACE_S", 0.1)
    here.leave(3, good_bye=False)
    recorders[1].wait(lambda: (3, "node_lost", (3,)) in recorders[1].events)
    here.wait(lambda: 3 not in hub.links.sessions)  # so nothing is kept for it any more
    assert here.grow().node_id == 3


def test_a_free_id_can_be_requested(job: Any) -> None:
    here = job()
    assert here.grow(requested_id=7).node_id == 7
    for taken in (1, 7):
        with pytest.raises(ConfigError, match=f"There is a node {taken} already"):
            here.ask(requested_id=taken)
    for none in (0, -1, 2**20, 2**32 - 1, "2"):
        with pytest.raises(ConfigError, match="a number from 1 to 1048575 was expected"):
            here.ask(requested_id=none)
    assert here.grow().node_id == 2


def test_an_invalid_role_is_refused_without_using_a_place(job: Any) -> None:
    here = job()
    for role in ("node.1", "a b", "distributed"):
        with pytest.raises(ConfigError, match="has no such place"):
            here.ask(roles=[role])
    assert here.grow().node_id == 2


def test_a_place_that_is_not_taken_in_time_is_assigned_again(job, monkeypatch) -> None:
    here = job()
    with monkeypatch.context() as patch:
        patch.setattr(membership, "JOIN_TIMEOUT_S", 0.1)
        assert here.ask().node_id == 2  # and does not connect
    assert here.grow().node_id == 2  # with all the time that it needs to connect


def test_a_tree_and_listed_edges_cannot_be_elastic() -> None:
    for topology in ("tree", "alone", [(0, 1)]):
        with pytest.raises(ConfigError, match="further nodes join a star or a mesh"):
            JobPlan(num_nodes=2, topology=topology, protocol="tcp", elastic=True)


def test_a_job_to_join_that_is_not_there_is_named_with_the_given_time() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        address = f"tcp://{LOOPBACK}:{silent.getsockname()[1]}"
        plan = JobPlan(num_nodes=1, protocol="tcp", startup_timeout=0.2)
        with pytest.raises(DeadlineExceeded, match=r"has waited 0\.2 s .* Something listens on"):
            joining_node(plan, [address], None)


def test_a_joining_node_gets_the_values_and_the_end_published_before_and_items(job: Any) -> None:
    here = job()
    here.routers[0].publish_ctx({"train_iter": 7, "weights": [1.0, 2.0]})
    here.routers[0].publish_ctx({"for_evaluators": 1}, to=["evaluator"])
    here.routers[0].publish_ctx({"for_collectors": 2}, to=["collector"])
    here.routers[0].emit(FINISH)
    recorder = Recorder(late := here.grow())
    recorder.wait(lambda: "for_collectors" in recorder.ctx[0] and recorder.has_finished)
    assert recorder.ctx[0] == {"train_iter": 7, "weights": [1.0, 2.0], "for_collectors": 2}
    assert here.routers[0].send("items", 5, to="collector.1")
    assert late.receive("items", timeout=5.0).value == 5


def test_a_group_is_fixed_and_members_now_has_joined_nodes(job: Any) -> None:
    here = job()
    group = World(here.routers[0]).group(["learner", "collector"])
    recorder = Recorder(here.routers[1])
    here.grow()
    recorder.wait(lambda: (2, "node_joined", (2,)) in recorder.events)
    assert (group.members, group.members_now) == ((0, 1), (0, 1, 2))
    later = [World(router).group(["learner", "collector"]) for router in here.routers.values()]
    gathered = together(*(partial(own.all_gather, own.rank) for own in later))
    assert gathered == [[0, 1, 2]] * 3
    named = World(here.routers[0]).group([1, 2])
    here.leave(2)
    here.wait_everywhere(lambda world: not world[2])
    assert [group.members_now, later[0].members_now, named.members_now] == [(0, 1), (0, 1), (1,)]
    assert [later[0].members, named.members] == [(0, 1, 2), (1, 2)]


@pytest.mark.parametrize(
    ("topology", "members", "good_bye"),
    [("star", [0, 1, 2], True), ("star", [2, 3], False), ("mesh", [2, 3], True)],
)
def test_a_node_that_gets_a_freed_number_is_a_new_member_of_its_groups(
    job: Any, monkeypatch: pytest.MonkeyPatch, topology: str, members: list[int], good_bye: bool
) -> None:
    monkeypatch.setattr(membership, "LOST_GRACE_S", 0.1)
    here = job(topology)
    here.grow()
    here.grow()
    here.wait_everywhere(lambda world: len(world) == 4)

    def gather() -> list[Any]:
        groups = [World(here.routers[node]).group(members) for node in members]
        return together(*(partial(own.all_gather, own.rank, timeout=10.0) for own in groups))

    expected = [[*range(len(members))]] * len(members)
    assert [gather(), gather()] == [expected] * 2
    stays = World(here.routers[members[members[0] == 2]]).group(members)
    with pytest.raises(DeadlineExceeded):
        stays.barrier(timeout=0.01)  # which node 2 does not call
    here.leave(2, good_bye=good_bye)
    here.wait_everywhere(lambda world: not world[2])
    for _ in range(2):
        with pytest.raises(PeerLost):
            stays.barrier(timeout=10.0)
    assert here.grow().node_id == 2
    here.wait_everywhere(lambda world: all(world))
    assert [gather(), gather()] == [expected] * 2
    assert not any(router.collectives._open for router in here.routers.values())


def test_nodes_that_join_a_mesh_concurrently_are_all_connected(job: Any) -> None:
    here = job("mesh")
    together(*[here.grow] * 4)
    assert sorted(here.routers) == [0, 1, 2, 3, 4, 5]
    for node, router in here.routers.items():
        router.register("who", lambda node=node: node)
    for node, router in here.routers.items():
        others = [other for other in here.routers if other != node]
        assert [router.call(other, "who") for other in others] == others
    recorders = [Recorder(here.routers[node]) for node in range(5)]
    here.routers[5].emit("hello", 5)
    for recorder in recorders:
        recorder.wait(lambda recorder=recorder: recorder.of(5, "hello") == [5])  # type: ignore[misc]
    both = [World(here.routers[node]).group([0, 5]) for node in (0, 5)]
    assert together(*(partial(own.all_gather, own.rank) for own in both)) == [[0, 1]] * 2


def test_the_first_nodes_of_a_mesh_keep_their_places(job: Any) -> None:
    here = job("mesh")
    here.leave(1)
    with pytest.raises(ConfigError, match="one of the 2 nodes with which this mesh began"):
        here.ask(requested_id=1)


def test_a_restarted_node_0_accepts_nodes_that_joined_before(job: Any) -> None:
    here = job()
    late = here.grow()
    here.leave(0, good_bye=False)
    here.enter_hub()
    here.wait(lambda: here.routers[0].peers == (1, 2))
    here.wait(lambda: bool(here.routers[0].world[2]))
    assert here.routers[0].world[2] == late.labels
    assert here.grow().node_id == 3


def test_a_restarted_node_0_of_a_star_needs_a_number_of_nodes_and_no_certain_ones(job: Any) -> None:
    here = job("star", 1)
    late = here.grow()
    here.leave(1, good_bye=False)
    here.leave(0, good_bye=False)
    here.enter_hub()
    here.routers[0].wait_ready(10.0)
    here.wait(lambda: here.routers[0].world[2] == late.labels)
    assert World(here.routers[0]).group("collector").members == (2,)
    here.leave(2)
    here.wait(lambda: not here.routers[0].world[2])
    with pytest.raises(DeadlineExceeded, match=r"waited 0\.01 s for node 1 of 2\."):
        here.routers[0].wait_ready(0.01)
    assert here.grow(requested_id=7).node_id == 7  # and waits for no node 1
    here.routers[0].wait_ready(10.0)


def test_a_roster_from_another_node_is_refused(job: Any) -> None:
    here = job()
    late = here.grow()
    with pytest.raises(RemoteError, match="sent a roster to node 0, which keeps the registry"):
        late.call(0, ROSTER, {}, {})


@pytest.mark.parametrize(
    "address", ["nonsense", "tcp://*:1", "ipc:///run/3", 5, "tcp://" + 5_000 * "x"]
)
def test_a_node_with_an_impossible_address_does_not_keep_others_from_joining(job, address) -> None:
    here = job("mesh")
    rogue, registry = here.grow(), here.routers[0]._membership
    here.wait(lambda: bool(registry._members[rogue.node_id].address))  # a right one, before
    rogue._calls.serve(ROSTER, lambda asker, *roster: address)
    assert here.grow().peers == (0, 1, 2)


def test_a_malformed_roster_is_refused() -> None:
    nodes: list[Any] = ["1", True, -1, 2**20]
    for message in ([], {1: "x"}, {1: [[], 5]}, *({node: [[], ""]} for node in nodes)):
        with pytest.raises(ConfigError, match="labels and an address were expected"):
            read_roster(message)
    with pytest.raises(LabelError):
        read_roster({1: [["no label"], ""]})
