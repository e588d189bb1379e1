"""Where the nodes of a tree are, seen from one of them: which peer leads to whom."""

from __future__ import annotations

from collections.abc import Iterable

from ding_lite.parallel.network.topology import HUB, NodeSpec, hub_of
from ding_lite.runtime.messaging.labels import matches

MAX_PATTERNS = 1_000
"""For how many groups of patterns it is remembered whose labels match."""


class Branches:
    """The ways of one node of a tree: one to each child's branch, and one to all the others.

    Args:
        spec: Who the node is.
    """

    def __init__(self, spec: NodeSpec) -> None:
        self._me = spec.node_id
        self._num_nodes = spec.num_nodes
        self._fan_out = spec.fan_out
        self._peers = spec.peers
        self._matching: dict[tuple[str, ...], list[int]] = {}
        self.labels = dict(enumerate(spec.world)) or {spec.node_id: spec.labels}
        """Those of the nodes, as far as they are known."""
        self.parent = None if spec.node_id == HUB else hub_of(spec.node_id, spec.fan_out)
        """The hub of this node; None at the root."""

    def way_to(self, node: int) -> int:
        """Return the peer that leads to another node, or is that node.

        Example:
            >>> spec = NodeSpec(node_id=1, num_nodes=9, labels=frozenset(), fan_out=2)
            >>> branches = Branches(spec)
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

    def learn(self, node: int, labels: frozenset[str]) -> None:
        """Note the labels of a node."""
        self.labels[node] = labels
        self._matching.clear()

    @property
    def nodes(self) -> range:
        """The nodes of the job."""
        return range(self._num_nodes)

    def matching(self, patterns: Iterable[str]) -> list[int]:
        """Return the other nodes, near and far, whose labels match."""
        patterns = tuple(patterns)
        found = self._matching.get(patterns)
        if found is None:
            found = [
                node
                for node in self.nodes
                if node != self._me and matches(self.labels.get(node, {f"node.{node}"}), patterns)
            ]
            if len(self._matching) >= MAX_PATTERNS:  # others choose them as well
                self._matching.clear()
            self._matching[patterns] = found
        return found

    def towards(self, patterns: Iterable[str]) -> frozenset[int]:
        """Return the peers that lead to nodes whose labels match, or that are such nodes.

        Where the labels of all nodes are not known it is all of them.
        """
        if len(self.labels) < self._num_nodes:
            return self._peers
        return frozenset(map(self.way_to, self.matching(patterns)))

    def onwards(self, came_from: int) -> frozenset[int]:
        """Return the peers that get what is for the whole branch of its sender.

        What comes from above goes to all below, and what comes from below goes on upwards.
        """
        if came_from == self.parent:
            return self._peers - {came_from}
        return frozenset() if self.parent is None else frozenset({self.parent})
