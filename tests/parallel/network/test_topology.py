"""Topologies: the edges of a job, and the places of its nodes."""

from __future__ import annotations

import math
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import ConfigError
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.network.address import PrivateDirectory
from ding_lite.parallel.network.topology import (
    FAN_OUT,
    NodeSpec,
    edges,
    fan_out,
    hub_of,
    listeners,
    neighbours,
)
from ding_lite.settings.environment import Settings

sizes = st.integers(1, 12)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Any, int]:
    num_nodes = draw(sizes)
    nodes = st.integers(0, num_nodes - 1)
    pairs = st.tuples(nodes, nodes).filter(lambda pair: pair[0] != pair[1])
    explicit = st.just([]) if num_nodes == 1 else st.lists(pairs)
    named = st.sampled_from(["star", "mesh", "tree", "tree:1", "tree:3", "alone"])
    return draw(named | explicit), num_nodes


@given(graphs())
def test_of_each_edge_the_lower_node_listens_and_the_higher_one_dials(graph) -> None:
    found = edges(*graph)
    assert all(0 <= low < high < graph[1] for low, high in found)
    assert listeners(found) == {low for low, _ in found}
    for node in range(graph[1]):
        near = neighbours(found, node)
        assert node not in near
        assert all(node in neighbours(found, other) for other in near)


@given(sizes)
def test_a_star_has_a_hub_a_mesh_all_edges_and_nodes_alone_none(num_nodes: int) -> None:
    assert edges("star", num_nodes) == {(0, node) for node in range(1, num_nodes)}
    assert edges("mesh", num_nodes) == {*combinations(range(num_nodes), 2)}
    assert edges("alone", num_nodes) == frozenset()


@given(st.integers(1, 300), st.integers(1, 12))
def test_every_node_of_a_tree_reaches_its_root_over_few_hubs(num_nodes: int, children: int) -> None:
    found = edges(f"tree:{children}", num_nodes)
    assert len(found) == num_nodes - 1
    hubs = {node: hub for hub, node in found}
    depth = 0
    for node in range(num_nodes):
        way = [node]
        while way[-1] != 0:
            way.append(hubs[way[-1]])
        depth = max(depth, len(way) - 1)
        assert len(neighbours(found, node)) <= children + (node > 0)
    whole_levels = sum(children**level for level in range(depth))  # all but the last one are full
    assert num_nodes > whole_levels or num_nodes == 1
    if children > 1:
        assert depth <= math.log(num_nodes, children) + 1


def test_a_small_tree_is_a_star_and_512_nodes_have_three_levels_below_the_root() -> None:
    assert fan_out("tree") == FAN_OUT
    assert edges("tree", FAN_OUT + 1) == edges("star", FAN_OUT + 1)
    node, depth = 511, 0
    while node:
        node, depth = hub_of(node, FAN_OUT), depth + 1
    assert depth == 3


@given(graphs())
def test_specs_agree_about_every_link(graph: tuple[Any, int]) -> None:
    topology, num_nodes = graph
    plan = JobPlan(num_nodes=num_nodes, topology=topology)
    specs = plan.specs(FakeDirectory())
    assert [spec.node_id for spec in specs] == list(range(num_nodes))
    for spec in specs:
        assert set(spec.dials) == {peer for peer in spec.peers if peer < spec.node_id}
        assert (spec.listen is None) == (spec.node_id >= max(spec.peers, default=-1))
        assert spec.fan_out == fan_out(topology)
        for peer, address in spec.dials.items():
            assert specs[peer].listen == address


class FakeDirectory(PrivateDirectory):
    """Names sockets and makes nothing."""

    def __init__(self) -> None:
        self.path = Path("/nowhere")


@pytest.mark.parametrize(
    ("topology", "why"),
    [
        *(
            (name, f"`topology` is '{name}'; it must be one of: 'star', 'mesh', 'tree', 'alone'")
            for name in ("ring", "tree:0", "tree:", "tree:-1", "tree:x", "tree:01", "trees")
        ),
        ([(0, 0)], "has the entry (0, 0); each must be a pair of two different node ids"),
        ([(0, 3)], "from 0 to 2"),
        ([(-1, 0)], "has the entry (-1, 0)"),
        ([(0, 1, 2)], "has the entry (0, 1, 2)"),
        ([(True, 0)], "has the entry (True, 0)"),
        ([(0, "1")], "has the entry (0, '1')"),
        ([1], "has the entry 1"),
        (5, "it must be one of 'star', 'mesh', 'tree', 'alone', or a list of pairs"),
    ],
)
def test_malformed_topologies_are_refused(topology: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        edges(topology, 3)


def specs(**plan: Any) -> tuple[NodeSpec, ...]:
    return JobPlan(**plan).specs(FakeDirectory())


def test_edges_and_a_number_of_nodes_may_be_numpys_integers() -> None:
    pairs: Any = np.array([[0, 1], [2, 1]])
    assert edges(pairs, 3) == edges([*zip(*pairs.T, strict=True)], 3) == {(0, 1), (1, 2)}
    assert [type(spec.num_nodes) for spec in specs(num_nodes=np.int64(2))] == [int, int]


def test_explicit_arguments_win_over_the_environment() -> None:
    settings = Settings(topology="star", protocol="tcp", labels=("big",))
    [zero, one, two] = specs(num_nodes=3, settings=Settings(topology="star", labels=("big",)))
    assert [sorted(spec.peers) for spec in (zero, one, two)] == [[1, 2], [0], [0]]
    assert zero.labels == {"distributed", "node.0", "big"}
    [zero, *_] = specs(num_nodes=3, topology="alone", protocol="tcp", settings=Settings())
    assert zero.peers == frozenset()
    assert zero.listen is None
    hub, *leaves = specs(num_nodes=3, ports=50_515, settings=settings)  # counts on from node 0
    assert hub.listen == "tcp://127.0.0.1:50515"
    assert [leaf.dials for leaf in leaves] == [{0: hub.listen}] * 2
    with pytest.raises(ConfigError, match=r"`ports`"):
        specs(num_nodes=3, ports=[50_515, 50_516], settings=settings)


def test_roles_are_read_from_the_environment() -> None:
    settings = Settings(roles=("learner", "collector+evaluator"))
    [zero, one] = specs(num_nodes=2, settings=settings)
    assert "learner.0" in zero.labels
    assert {"collector", "evaluator", "collector.0"} <= one.labels
    with pytest.raises(ConfigError, match="DING_LITE_ROLES has 2 entries for 3 nodes"):
        specs(num_nodes=3, settings=settings)


def test_tcp_listens_on_loopback_at_ports_chosen_or_free() -> None:
    [zero, one, two] = specs(num_nodes=3, protocol="tcp")
    assert str(zero.listen).startswith("tcp://127.0.0.1:")
    assert two.dials == {0: zero.listen, 1: one.listen}
    for ports in (50_515, [50_515, 50_516], (50_515, 50_516)):
        [zero, one] = specs(num_nodes=2, protocol="tcp", ports=ports)
        assert one.dials == {0: "tcp://127.0.0.1:50515"}


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"protocol": "udp"}, "`protocol` is 'udp'"),
        ({"address": "127.0.0.1"}, "the protocol is `ipc`, which has no addr"),
        ({"key_file": "job.key"}, "`key_file` is 'job.key', but the protocol is `ipc`"),
        ({"ports": 50_515}, "Add `protocol='tcp'`"),
        ({"protocol": "tcp", "address": "0.0.0.0"}, "no key is given"),
        ({"protocol": "tcp", "ports": [1, 1]}, "2 nodes need as many different ports"),
        ({"protocol": "tcp", "ports": 65_535}, "`ports` is 65536"),
        ({"protocol": "tcp", "ports": [0, 1]}, "`ports` is 0"),
        ({"startup_timeout": 0}, "`startup_timeout` is 0; it must be above 0"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        JobPlan(num_nodes=2, **plan)
