"""Routes of the nodes of a tree."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, strategies as st

from ding_lite.parallel.network.topology import NodeSpec, edges, neighbours
from ding_lite.parallel.tree.routing_table import RoutingTable
from ding_lite.runtime.messaging.labels import node_labels

sizes = st.tuples(st.integers(2, 60), st.integers(1, 9))


def routing_tables(num_nodes: int, children: int, *, knows: bool = True) -> list[RoutingTable]:
    links = edges(f"tree:{children}", num_nodes)
    world = tuple(
        node_labels(node, distributed=True, roles=[f"role{node % 3}"]) for node in range(num_nodes)
    )
    return [
        RoutingTable(
            NodeSpec(
                node_id=node,
                num_nodes=num_nodes,
                labels=world[node],
                peers=neighbours(links, node),
                world=world if knows else (),
                edges=links,
                fan_out=children,
            )
        )
        for node in range(num_nodes)
    ]


@given(sizes)
def test_routes_lead_to_every_node(size: tuple[int, int]) -> None:
    tree, (num_nodes, children) = routing_tables(*size), size
    links = edges(f"tree:{children}", num_nodes)
    for start in range(0, num_nodes, 7):
        for goal in range(num_nodes):
            at, seen = start, {start}
            while at != goal:
                hop = tree[at].next_hop(goal)
                assert (min(at, hop), max(at, hop)) in links
                assert hop not in seen, "a route with a cycle"
                seen.add(hop)
                at = hop


@given(sizes, st.integers(0, 59))
def test_a_broadcast_reaches_ancestors_and_descendants_once(size, said_by) -> None:
    tree, said_by = routing_tables(*size), said_by % size[0]
    links = edges(f"tree:{size[1]}", size[0])
    received: list[int] = []
    under_way = [(said_by, peer) for peer in neighbours(links, said_by)]
    while under_way:
        speaker, listener = under_way.pop()
        received.append(listener)
        under_way += [(listener, hop) for hop in tree[listener].relay_hops(speaker)]
    line = {node for node in range(size[0]) if _is_on_one_line(tree, node, said_by)}
    assert sorted(received) == sorted(line - {said_by})


def _is_on_one_line(tree: list[RoutingTable], one: int, other: int) -> bool:
    return one in _line(tree, other) or other in _line(tree, one)


def _line(tree: list[RoutingTable], node: int) -> list[int]:
    line = [node]
    while (parent := tree[line[-1]].parent) is not None:
        line.append(parent)
    return line


@given(sizes)
def test_addressed_values_go_to_peers_that_lead_to_matching_nodes(size) -> None:
    for node, tree in enumerate(routing_tables(*size)):
        wanted = [other for other in range(size[0]) if other % 3 == 1 and other != node]
        assert tree.matching(["role1"]) == wanted
        assert tree.next_hops(["role1"]) == {tree.next_hop(other) for other in wanted}


def test_labels_that_are_learned_during_a_search_are_found_by_the_next_one() -> None:
    table = routing_tables(3, 2, knows=False)[0]

    class Learned(frozenset[str]):
        def __iter__(self) -> Iterator[str]:  # as if another thread had learned them just then
            table.learn(1, frozenset({"late"}))
            return super().__iter__()

    table.learn(2, Learned({"early"}))
    assert table.matching(["late"]) == []
    assert table.matching(["late"]) == [1]


def test_with_unknown_labels_all_peers_are_used() -> None:
    [root, *_] = routing_tables(10, 3, knows=False)
    assert root.next_hops(["learner"]) == {1, 2, 3}
    assert root.matching(["learner"]) == []
    assert root.matching(["node.7", "node.9"]) == [7, 9]  # a node's number is known
    root.learn(7, frozenset({"node.7", "learner"}))
    assert root.matching(["learner"]) == [7]
    assert root.next_hops(["learner"]) == {1, 2, 3}  # it may not be the only one
