"""The job as one node knows it: labels of all nodes, addresses, and common peers."""

from __future__ import annotations

from collections.abc import Sequence

from ding_lite.errors import ConfigError
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.network.address import ANY_HOST, Address, is_loopback
from ding_lite.parallel.network.interfaces import interface_towards
from ding_lite.parallel.network.topology import NodeSpec, edges, neighbours
from ding_lite.parallel.router.routing import DirectRouting


class JobView:
    """Combine the spec of a node, the handshakes of its peers and the roster of node 0.

    Args:
        spec: The place of this node.
        links: Its links.
        routing: Its routing, which may know the labels of further nodes.
    """

    def __init__(self, spec: NodeSpec, links: Links, routing: DirectRouting) -> None:
        self._spec = spec
        self._links = links
        self._routing = routing
        self._roster: dict[int, frozenset[str]] = {}

    def note_labels(self, node: int, labels: frozenset[str]) -> None:
        """Record the labels that node 0 has sent for a node; empty labels for a gone node."""
        self._roster[node] = labels

    @property
    def world(self) -> tuple[frozenset[str], ...]:
        """The labels of every node of the job; empty for an unknown node."""
        if self._spec.world and not self._roster:
            return self._spec.world
        with self._links.changed:
            known = [s.peer for s in self._links.sessions.values() if s.peer is not None]
        of_node = self._routing.labels | {self._spec.node_id: self._spec.labels}
        of_node |= dict(enumerate(self._spec.world))
        of_node |= {peer.node_id: peer.labels for peer in known}
        of_node |= self._roster
        sizes = [peer.num_nodes for peer in known] + [max(of_node) + 1]
        num_nodes = self._spec.num_nodes or max(sizes)
        if self._spec.growth is not None:
            num_nodes = max(num_nodes, max(of_node) + 1)
        return tuple(of_node.get(node, frozenset()) for node in range(num_nodes))

    @property
    def host(self) -> str | None:
        """The host by which other nodes reach this machine; None if unknown."""
        own = self._links.address
        known = [own or "", *self._spec.dials.values(), self._spec.desk or ""]
        places = [Address.parse(place) for place in known if place.startswith("tcp")]
        named = [place for place in places if place.place not in ANY_HOST]
        if not named:
            return None
        if named[0] == places[0] and own is not None:
            return named[0].place
        interface = interface_towards(named[0])
        return None if named != places and is_loopback(interface) else interface

    def coordinator_of(self, members: Sequence[int]) -> int:
        """Return a node that all these nodes can call, the same one on each of them.

        Raises:
            ConfigError: There is no such node.
        """
        if self._routing.passes_on:
            return members[0]
        num_nodes, links = len(self.world), self._spec.edges
        if self._spec.growth is not None:
            links = edges(self._spec.growth.topology, num_nodes)
        candidates: list[int] = [*members, *range(num_nodes)]
        for node in candidates:
            if set(members) <= neighbours(links, node) | {node}:
                return node
        raise ConfigError(
            f"The nodes {[*members]} share no node that all of them are connected to, so they "
            f"cannot form a group. Add edges, or use a mesh or a star."
        )
