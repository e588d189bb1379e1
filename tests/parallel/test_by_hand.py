"""The place of a node that was started by hand: what the environment and `attach_to` make of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ding_lite.distributed import World
from ding_lite.errors import ConfigError
from ding_lite.parallel import Parallel
from ding_lite.parallel.address import LOOPBACK, free_ports
from ding_lite.parallel.by_hand import connected, guest, node_of_environment
from ding_lite.parallel.plan import Plan
from ding_lite.parallel.security import make_key
from ding_lite.parallel.topology import NodeSpec
from ding_lite.runtime.task import Task
from ding_lite.settings import Settings

A, B = "tcp://127.0.0.1:50515", "tcp://127.0.0.1:50516"


def spec_of(
    node_id: int,
    num_nodes: int = 2,
    *,
    dials: tuple[str, ...] = (),
    environ: dict[str, Any] | None = None,
    **plan: Any,
) -> NodeSpec:
    settings = Settings(node_id=node_id, num_nodes=num_nodes, **(environ or {}))
    whole = Plan(num_nodes=num_nodes, protocol="tcp", settings=Settings(), **plan)
    return node_of_environment(whole, settings, dials)


# -- launch by environment -----------------------------------------------------------------


def test_node_0_listens_and_the_others_dial() -> None:
    zero = spec_of(0, environ={"ports": (50515,)})
    assert (zero.listen, zero.dials, set(zero.neighbours)) == (A, {}, {1})
    one = spec_of(1, dials=(A,))
    assert (one.listen, one.dials, set(one.neighbours)) == (None, {0: A}, {0})


def test_in_a_mesh_a_node_dials_those_before_it_and_listens_for_those_behind() -> None:
    one = spec_of(1, 3, dials=(A,), environ={"ports": (50515, 50516, 50517)})
    assert (one.listen, one.dials, set(one.neighbours)) == (B, {0: A}, {0, 2})
    two = spec_of(2, 3, dials=(A, B))
    assert (two.listen, two.dials, set(two.neighbours)) == (None, {0: A, 1: B}, {0, 1})


def test_a_node_has_its_own_role_counted_over_all() -> None:
    roles = ["learner", "collector", "collector"]
    two = spec_of(2, 3, topology="star", dials=(A,), roles=roles)
    assert two.labels == {"distributed", "node.2", "collector", "collector.1"}


@pytest.mark.parametrize(
    ("node_id", "num_nodes", "dials", "expected"),
    [
        (1, 2, (), r"is not given; node 1 dials the nodes \[0\]"),
        (2, 3, (A,), r"node 2 dials the nodes \[0, 1\] .* In a star"),
        (0, 2, (A,), "node 0 dials nobody, the others dial it"),
        (0, 2, (), "DING_LITE_PORTS is not set; others dial node 0 of 2"),
        (1, 2, ("ipc:///tmp/x",), "meet over tcp"),
        (1, 2, ("127.0.0.1:50515",), "is no address"),
    ],
)
def test_a_place_that_does_not_fit_is_refused(
    node_id: int, num_nodes: int, dials: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        spec_of(node_id, num_nodes, dials=dials)


def test_a_job_of_one_node_runs_here_and_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DING_LITE_NUM_NODES", "1")
    [labels] = Parallel.runner(8, ports=[1, 2])(lambda: Task().labels)
    assert labels == {"standalone", "node.0"}


def test_all_but_the_number_of_nodes_and_the_ports_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DING_LITE_NUM_NODES", "3")
    monkeypatch.setenv("DING_LITE_NODE_ID", "2")
    monkeypatch.setenv("DING_LITE_TOPOLOGY", "mesh")
    monkeypatch.setenv("DING_LITE_ATTACH_TO", f"{A},{B}")
    Parallel.runner(1)
    Parallel.runner(1, "star", attach_to=A)
    with pytest.raises(ConfigError, match=r"dials the nodes \[0\]"):
        Parallel.runner(1, "star")
    with pytest.raises(ConfigError, match=r"`protocol` .* is 'ipc'"):
        Parallel.runner(1, protocol="ipc")
    with pytest.raises(ConfigError, match="has 1 entries for 3 nodes"):
        Parallel.runner(1, roles=["learner"])


# -- joining a running job -----------------------------------------------------------------


def guest_of(attach_to: tuple[str, ...], node_ids: Any, **more: Any) -> NodeSpec:
    settings = Settings(**more.pop("environ", {}))
    plan = Plan(**{"num_nodes": 1, "protocol": "tcp", "settings": settings, **more})
    return guest(plan, settings, attach_to, node_ids)


def test_a_guest_dials_the_nodes_it_names_and_knows_no_more() -> None:
    spec = guest_of((A, B), [4], labels="late", environ={"labels": ("gpu",)})
    assert (spec.node_id, spec.num_nodes, spec.dials) == (4, 0, {0: A, 1: B})
    assert (set(spec.neighbours), spec.listen) == ({0, 1}, None)
    assert spec.labels == {"distributed", "node.4", "late", "gpu"}
    assert guest_of((A,), None, environ={"node_id": 3}).node_id == 3


@pytest.mark.parametrize(
    ("node_ids", "more", "expected"),
    [
        (None, {}, "n_parallel_workers=1 and node_ids="),
        ([2, 3], {}, r"node_ids=\[2, 3\]"),
        ([2], {"num_nodes": 2}, "Found are n_parallel_workers=2"),
        ([0], {}, "must have a higher number"),
        ([True], {}, "must have a higher number"),
        ([2], {"roles": ["learner"]}, "Roles are counted over all nodes"),
        ([2], {"environ": {"roles": ("learner",)}}, "Roles are counted over all nodes"),
        ([2], {"ports": 50517}, "listens nowhere"),
    ],
)
def test_what_does_not_fit_a_place_is_refused(
    node_ids: Any, more: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        guest_of((A,), node_ids, **more)


# -- connected -----------------------------------------------------------------------------


def on_nodes(specs: list[NodeSpec], main: Callable[[World], object]) -> list[Any]:
    """Run `main(world)` on each node, a thread each; an exception is a result too."""
    results: dict[int, Any] = {}
    all_done = threading.Barrier(len(specs))

    def run(spec: NodeSpec) -> None:
        with connected(spec):
            try:
                results[spec.node_id] = main(World.current())
            except ConfigError as error:
                results[spec.node_id] = str(error)
            all_done.wait(15.0)

    threads = [threading.Thread(target=run, args=(spec,)) for spec in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[spec.node_id] for spec in specs]


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Return free ports, for nodes with a key that only this test has."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return free_ports(LOOPBACK, 3)


def job(num_nodes: int, topology: str, ports: list[int], **plan: Any) -> list[NodeSpec]:
    places = [f"tcp://{LOOPBACK}:{port}" for port in ports]
    return [
        spec_of(
            node,
            num_nodes,
            topology=topology,
            dials=tuple(places[: min(node, 1 if topology == "star" else node)]),
            environ={"ports": (ports[node],)},
            **plan,
        )
        for node in range(num_nodes)
    ]


@pytest.mark.parametrize(("num_nodes", "topology"), [(2, "star"), (2, "mesh"), (3, "mesh")])
def test_labels_of_all_are_learned_from_the_greetings(
    ports: list[int], num_nodes: int, topology: str
) -> None:
    specs = job(num_nodes, topology, ports, roles=["learner", "player", "player"][:num_nodes])

    def main(world: World) -> object:
        everybody = world.group(["learner", "player"])
        return world.num_nodes, everybody.members, everybody.all_gather(world.node_id)

    nodes = list(range(num_nodes))
    assert on_nodes(specs, main) == [(num_nodes, tuple(nodes), nodes)] * num_nodes


def test_a_leaf_of_a_larger_star_says_whose_labels_it_does_not_know(ports: list[int]) -> None:
    specs = job(3, "star", ports)

    def main(world: World) -> object:
        said = world.group(range(world.num_nodes)).all_gather(world.node_id)
        assert said == [0, 1, 2]
        return world.group("node.*").members

    hub, leaf, other = on_nodes(specs, main)
    assert hub == (0, 1, 2)
    assert leaf.startswith("Node 1 does not know the labels of the nodes [2]: it was started by")
    assert other.startswith("Node 2 does not know the labels of the nodes [1]")


def test_a_key_file_is_read_before_anything_is_bound(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Parallel.runner(2, protocol="tcp", key_file=tmp_path / "missing")
    key = make_key(tmp_path / "key")
    [spec, _] = Plan(num_nodes=2, protocol="tcp", key_file=str(key)).specs(None)  # type: ignore[arg-type]
    assert spec.key_file == str(key)
    Plan(num_nodes=2, protocol="tcp", address="0.0.0.0", key_file=str(key))


def test_one_port_of_the_environment_is_the_first_of_all() -> None:
    assert Plan(num_nodes=2, protocol="tcp", settings=Settings(ports=(50515,))).ports == (
        50515,
        50516,
    )
    both = Plan(num_nodes=2, protocol="tcp", ports=7000, settings=Settings(ports=(50515,)))
    assert both.ports == (7000, 7001)


def test_connecting_to_nobody_closes_what_was_opened(ports: list[int]) -> None:
    [alone] = job(2, "star", ports)[:1]
    impatient = replace(alone, startup_timeout=0.1)
    with pytest.raises(TimeoutError, match="for node 1 of 2"), connected(impatient):
        raise AssertionError("nobody is there")
