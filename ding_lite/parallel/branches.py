"""Where the nodes of a tree are, seen from one of them: which neighbour leads to whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set as AbstractSet

from ding_lite.parallel.topology import HUB, NodeSpec, hub_of
from ding_lite.runtime.labels import matches


class Branches:
    """The ways of one node of a tree: one to each child's branch, and one to all the others.

    Args:
        spec: Who the node is.
        world: Returns the labels of every node of the job; none of a node that is not known.
    """

    def __init__(self, spec: NodeSpec, world: Callable[[], Sequence[AbstractSet[str]]]) -> None:
        self._me = spec.node_id
        self._fan_out = spec.fan_out
        self._neighbours = spec.neighbours
        self._world = world
        self._matching: dict[tuple[str, ...], list[int]] = {}
        self._is_complete = bool(spec.world)
        self.parent = None if spec.node_id == HUB else hub_of(spec.node_id, spec.fan_out)
        """The hub of this node; None at the root."""

    def way_to(self, node: int) -> int:
        """Return the neighbour that leads to another node, or is that node.

        Example:
            >>> spec = NodeSpec(node_id=1, num_nodes=9, labels=frozenset(), fan_out=2)
            >>> branches = Branches(spec, lambda: ())
            >>> [branches.way_to(node) for node in (0, 3, 7, 4, 6)]
            [0, 3, 3, 4, 0]
        """
        child = node
        while child > self._me:  # a hub has a lower id than all below it
            hub = hub_of(child, self._fan_out)
            if hub == self._me:
                return child
            child = hub
        return HUB if self.parent is None else self.parent

    def matching(self, patterns: Iterable[str]) -> list[int]:
        """Return the other nodes, near and far, whose labels match."""
        patterns = tuple(patterns)
        found = self._matching.get(patterns)
        if found is None:
            found = [
                node
                for node, labels in enumerate(self._world())
                if node != self._me and matches(labels or {f"node.{node}"}, patterns)
            ]
            if self._is_complete:
                self._matching[patterns] = found
        return found

    def towards(self, patterns: Iterable[str]) -> frozenset[int]:
        """Return the neighbours that lead to nodes whose labels match, or that are such nodes.

        Where the labels of all nodes are not known it is all of them.
        """
        if not self._is_complete:
            return self._neighbours
        return frozenset(map(self.way_to, self.matching(patterns)))

    def onwards(self, came_from: int) -> frozenset[int]:
        """Return the neighbours that get what is for the whole branch of its sender.

        What comes from above goes to all below, and what comes from below goes on upwards.
        """
        if came_from == self.parent:
            return self._neighbours - {came_from}
        return frozenset() if self.parent is None else frozenset({self.parent})
