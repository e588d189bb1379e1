"""Routes within a tree: the peer of a node that leads to each other node."""

from __future__ import annotations

from collections.abc import Iterable

from ding_lite.parallel.network.topology import HUB, NodeSpec, hub_of
from ding_lite.runtime.messaging.labels import matches

MAX_PATTERNS = 1_000
"""The most cached sets of patterns."""


class RoutingTable:
    """The routes of one node of a tree: to each child's branch, and to the parent for the rest."""

    def __init__(self, spec: NodeSpec) -> None:
        self._me = spec.node_id
        self._num_nodes = spec.num_nodes
        self._fan_out = spec.fan_out
        self._peers = spec.peers
        self._matching: dict[tuple[str, ...], list[int]] = {}
        self.labels = dict(enumerate(spec.world)) or {spec.node_id: spec.labels}
        self.parent = None if spec.node_id == HUB else hub_of(spec.node_id, spec.fan_out)
        """The hub of this node; None at the root."""

    def next_hop(self, node: int) -> int:
        """Return the next hop to another node: the node itself, or the peer that leads to it."""
        child = node
        while child > self._me:  # a hub has a lower id than all nodes below it
            hub = hub_of(child, self._fan_out)
            if hub == self._me:
                return child
            child = hub
        return HUB if self.parent is None else self.parent

    def learn(self, node: int, labels: frozenset[str]) -> None:
        self.labels[node] = labels
        self._matching = {}  # not cleared: a search under way puts its result into the old one

    @property
    def nodes(self) -> range:
        return range(self._num_nodes)

    def matching(self, patterns: Iterable[str]) -> list[int]:
        patterns = tuple(patterns)
        known = self._matching
        found = known.get(patterns)
        if found is None:
            found = [
                node
                for node in self.nodes
                if node != self._me and matches(self.labels.get(node, {f"node.{node}"}), patterns)
            ]
            if len(known) >= MAX_PATTERNS:  # remote nodes choose patterns, too
                known.clear()
            known[patterns] = found
        return found

    def next_hops(self, patterns: Iterable[str]) -> frozenset[int]:
        """Return the next hops to all nodes with matching labels; all peers if some are unknown."""
        if len(self.labels) < self._num_nodes:
            return self._peers
        return frozenset(map(self.next_hop, self.matching(patterns)))

    def relay_hops(self, came_from: int) -> frozenset[int]:
        """Return the hops of a broadcast: from the parent to all children, else to the parent."""
        if came_from == self.parent:
            return self._peers - {came_from}
        return frozenset() if self.parent is None else frozenset({self.parent})
