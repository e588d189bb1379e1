"""Conclusions of the launcher from the states of all nodes."""

from __future__ import annotations

from typing import Any

import pytest

from ding_lite.parallel.network.topology import NodeSpec, Topology, edges, neighbours
from ding_lite.parallel.supervise.job import NodeRecord, Nodes
from ding_lite.parallel.supervise.node_process import CONNECTING, RUNNING, Returned


def nodes(topology: Topology, fates: str) -> Nodes:
    """Make nodes that run (r), connect (c), have returned (x) or were given up (g)."""
    links = edges(topology, len(fates))
    made = Nodes()
    for node_id, fate in enumerate(fates):
        place: dict[str, Any] = {"num_nodes": len(fates), "peers": neighbours(links, node_id)}
        node = made[node_id] = NodeRecord(NodeSpec(node_id=node_id, labels=frozenset(), **place))
        node.stage = CONNECTING if fate == "c" else RUNNING
        node.returned = Returned(None) if fate in "xg" else None
        node.was_given_up = fate == "g"
    return made


CHAIN = [(0, 1), (1, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize(
    ("topology", "fates", "cut_off"),
    [
        ("star", "rrr", set()),
        ("star", "rxr", set()),
        ("star", "gxr", {2}),
        ("star", "grr", {1, 2}),
        ("star", "xgr", set()),
        ("mesh", "gxr", set()),
        ("mesh", "grr", {1, 2}),
        ("alone", "rxr", set()),
        (CHAIN, "xgrrr", {2, 3, 4}),
        (CHAIN, "rrgrx", {0, 1}),
        (CHAIN, "rrrrx", set()),
    ],
)
def test_running_nodes_are_cut_off_when_no_path_leads_to_a_returned_node(
    topology: Topology, fates: str, cut_off: set[int]
) -> None:
    made = nodes(topology, fates)
    running = {node_id for node_id, fate in enumerate(fates) if fate == "r"}
    assert {node_id for node_id in running if made.is_cut_off(made[node_id])} == cut_off


def test_a_connecting_node_waits_for_a_lost_peer() -> None:
    made = nodes("star", "gxrc")
    assert [made.waits_for_lost_peer(node) for node in made.values()] == [False, False, False, True]
    others = nodes("star", "rgcx")
    assert not any(others.waits_for_lost_peer(node) for node in others.values())
