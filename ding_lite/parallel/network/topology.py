"""Topologies: the edges between the nodes of a job, and the place of each node.

A topology is a set of edges between node ids. Of the two nodes of an edge the one with the
lower id listens and the one with the higher id dials, so exactly one link is made.

A `tree` spreads the load of a star: node 0 is the root, each node is the hub of at most `FAN_OUT`
others, and the hubs relay messages (`relay`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from numbers import Integral
from typing import TypeAlias

from ding_lite.errors import ConfigError
from ding_lite.io.memory import check_fits
from ding_lite.settings.environment import TOPOLOGIES, kind_of_topology
from ding_lite.settings.rules import check_all, one_of

HUB = 0
"""The node that all others of a star are connected to, and the root of a tree."""
_BYTES_OF_AN_EDGE = 160
"""Bytes of a pair of node ids, and of its place in a set."""
FAN_OUT = 8
"""The default limit of the children of a hub; `tree:4` sets another one.

With a higher limit a hub sends more bytes, and a message takes fewer hops (logarithmically). With
8, a job of up to nine nodes is a star, three levels reach 585 nodes, and 15 policies of 10 MB a
second fill a hub's link of 10 Gbit/s.
"""

ENTRANCES = range(2**32 - 64, 2**32)
"""Ids under which nodes connect to an elastic job before they have their own id."""

FIRST_TIMESTAMP_INCARNATION = 2**40
"""Incarnations from here on are timestamps of nodes without a launcher. Such a node never replaces
a connected one, in contrast to a restarted one."""

Edge: TypeAlias = tuple[int, int]
"""Two connected nodes, the lower id first."""
Topology: TypeAlias = str | Iterable[tuple[int, int]]
"""`star`, `mesh`, `tree`, `alone`, or the pairs of connected nodes."""


@dataclass(frozen=True)
class Growth:
    """The growth of an elastic job, which further nodes may join."""

    topology: str
    """`star` or `mesh`: the nodes that a further one is connected to."""
    first_id: int
    """The lowest id for a joining node that does not request one."""


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """The place of a node in a job."""

    node_id: int
    num_nodes: int
    """How many nodes the job has; 0 until a peer has reported it."""
    labels: frozenset[str]
    incarnation: int = 1
    """The number of starts of the node; nanoseconds since 1970 if no launcher counts them."""
    listen: str | None = None
    """The address where nodes with a higher id connect; None if there are no such nodes."""
    dials: Mapping[int, str] = field(default_factory=dict)
    """The addresses of the peers with a lower id, by their id; "" for an address that is not known
    yet."""
    rendezvous: str | None = None
    """The address of the rendezvous at node 0; None if all addresses are known."""
    peers: frozenset[int] = frozenset()
    key_file: str | None = None
    """The key file of the job, for tcp; None for the user's own key, on loopback."""
    startup_timeout: float | None = 60.0
    """Seconds within which all peers must be connected; None waits for ever."""
    linger: float = 30.0
    """Seconds that a leaving node waits for a lost peer with unacknowledged events."""
    peer_timeout: float | None = None
    """Seconds without any peer after which the node ends with an error; None for no limit."""
    world: tuple[frozenset[str], ...] = ()
    """The labels of every node of the job; empty if only those of the peers will be known."""
    edges: frozenset[Edge] = frozenset()
    fan_out: int = 0
    """The limit of the children of a hub in a tree; 0 for other topologies."""
    growth: Growth | None = None
    """How an elastic job grows; None for a fixed number of nodes."""
    has_joined: bool = False
    """Whether the node has joined a running elastic job, and may leave without ending it."""
    job: str = ""
    program: str = ""
    """The name of the program, for the node's metrics; "" is that of this process."""
    directory: str | None = None
    """The private directory of the job, for the node's metrics; None writes none."""
    began: float | None = None
    """When the job began, in seconds of this machine's monotonic clock."""

    @property
    def name(self) -> str:
        """The name of the node in messages to users; they never see the id of an entrance."""
        return "this process" if self.node_id in ENTRANCES else f"node {self.node_id}"


def edges(topology: Topology, num_nodes: int) -> frozenset[Edge]:
    """Return the edges of a topology.

    Example:
        >>> sorted(edges("star", 4))
        [(0, 1), (0, 2), (0, 3)]
        >>> sorted(edges("tree:2", 5))
        [(0, 1), (0, 2), (1, 3), (1, 4)]
        >>> sorted(edges([(2, 1), (0, 1)], 3))
        [(0, 1), (1, 2)]
    """
    if isinstance(topology, str):
        check_all(one_of(TOPOLOGIES, topology=kind_of_topology(topology)))
        if topology == "alone":
            return frozenset()
        if children := fan_out(topology):
            return frozenset((hub_of(node, children), node) for node in range(1, num_nodes))
        if topology == "star":
            return frozenset((HUB, node) for node in range(1, num_nodes))
        num_pairs = num_nodes * (num_nodes - 1) // 2
        check_fits(num_pairs * _BYTES_OF_AN_EDGE, what="A mesh", num_nodes=num_nodes)
        return frozenset(combinations(range(num_nodes), 2))
    if not isinstance(topology, Iterable):
        raise ConfigError(
            f"`topology` is {topology!r}; it must be one of {', '.join(map(repr, TOPOLOGIES))}, "
            f"or a list of pairs of node ids, such as [(0, 1), (1, 2)]."
        )
    return frozenset(_edge(pair, num_nodes) for pair in topology)


def _edge(pair: object, num_nodes: int) -> Edge:
    ends = [*pair] if isinstance(pair, Iterable) else []
    if len(ends) == 2 and all(type(end) is not bool and isinstance(end, Integral) for end in ends):
        low, high = sorted(map(int, ends))
        if 0 <= low < high < num_nodes:
            return low, high
    raise ConfigError(
        f"`topology` has the entry {pair!r}; each must be a pair of two different node ids from "
        f"0 to {num_nodes - 1}."
    )


def fan_out(topology: Topology) -> int:
    """Return the limit of the children of a hub; 0 if the topology is no tree."""
    if not isinstance(topology, str) or kind_of_topology(topology) != "tree":
        return 0
    _, _, children = topology.partition(":")
    return int(children or FAN_OUT)


def hub_of(node: int, fan_out: int) -> int:
    return (node - 1) // fan_out


def neighbours(edges: Iterable[Edge], node: int) -> frozenset[int]:
    return frozenset(sum(edge) - node for edge in edges if node in edge)


def listeners(edges: Iterable[Edge]) -> frozenset[int]:
    return frozenset(low for low, _ in edges)
