"""The job as one node knows it: its peers, the labels of all nodes, and addresses."""

from __future__ import annotations

from collections.abc import Sequence

from ding_lite.clock import Clock
from ding_lite.errors import ConfigError
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.network.address import ANY_HOST, Address, is_loopback
from ding_lite.parallel.network.interfaces import interface_towards
from ding_lite.parallel.network.topology import NodeSpec, edges, neighbours
from ding_lite.parallel.router.routing import Routing
from ding_lite.runtime.messaging.base import Router


class JobView(Router):
    """The part of a router that knows the job, from the spec of its node and from its peers."""

    links: Links
    """The connections to the peers, and the sessions with them."""
    _routing: Routing

    def __init__(self, spec: NodeSpec, clock: Clock) -> None:
        super().__init__()
        self._spec = spec
        self._clock = clock
        self._roster: dict[int, frozenset[str]] = {}
        """The labels that node 0 has sent; empty for a node that is gone."""

    @property
    def node_id(self) -> int:
        return self._spec.node_id

    @property
    def labels(self) -> frozenset[str]:
        return self._spec.labels

    @property
    def address(self) -> str | None:
        return self.links.address

    @property
    def is_active(self) -> bool:
        return self.links.is_active

    @property
    def has_audience(self) -> bool:
        return self.links.has_audience

    @property
    def peers(self) -> tuple[int, ...]:
        return tuple(sorted([*self.links.connected, *self._routing.far]))

    @property
    def grows(self) -> bool:
        return self._spec.growth is not None

    @property
    def may_leave(self) -> bool:
        return self._spec.has_joined

    @property
    def world(self) -> tuple[frozenset[str], ...]:
        # Nodes that are started apart may have further labels, which their handshakes contain.
        if self._spec.world and not self._roster and self._spec.rendezvous is None:
            return self._spec.world
        with self.links.lock:
            known = [s.peer for s in self.links.sessions.values() if s.peer is not None]
        of_node = self._routing.labels | {self._spec.node_id: self._spec.labels}
        of_node |= dict(enumerate(self._spec.world))
        of_node |= {peer.node_id: peer.labels for peer in known}
        of_node |= self._roster
        sizes = [peer.num_nodes for peer in known] + [max(of_node) + 1]
        num_nodes = self._spec.num_nodes or max(sizes)
        if self.grows:
            num_nodes = max(num_nodes, max(of_node) + 1)
        return tuple(of_node.get(node, frozenset()) for node in range(num_nodes))

    @property
    def host(self) -> str | None:
        own = self.links.address
        known = [own or "", *self._spec.dials.values(), self._spec.rendezvous or ""]
        places = [Address.parse(place) for place in known if place.startswith("tcp")]
        named = [place for place in places if place.place not in ANY_HOST]
        if not named:
            return None
        if named[0] == places[0] and own is not None:
            return named[0].place
        interface = interface_towards(named[0])
        return None if named != places and is_loopback(interface) else interface

    def coordinator_of(self, members: Sequence[int]) -> int:
        if self._routing.reaches_beyond_peers:
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

    def _is_unreachable(self, node: int) -> bool:
        spec = self._spec
        if self._routing.reaches_beyond_peers or self.grows or node == spec.node_id:
            return False
        return node < spec.num_nodes and node not in spec.peers

    # -- for the membership of an elastic job --------------------------------------------------

    def labels_of(self, peer: int) -> frozenset[str]:
        """Return the labels of a peer; empty before its handshake."""
        session = self.links.sessions.get(peer)  # a peer that had joined may be gone by now
        return frozenset() if session is None else session.labels

    def note_labels(self, node: int, labels: frozenset[str], event: str = "") -> None:
        """Record a node's labels, none if it is gone; emit an event here if it is no peer."""
        if not labels:
            self.collectives.left(node)
        elif not self._roster.get(node, labels):  # before the new node with this number connects
            self.collectives.joined(node, is_new_incarnation=False)
        self._roster[node] = labels
        if event:
            self._inbox.put_event(node, event, (node,), {})
        self._inbox.wake()
