"""Topologies: which nodes of a job are connected to which, and what each node is told of it.

A topology is a set of edges between node ids. Of the two nodes of an edge the one with the
lower id listens and the one with the higher id dials, so exactly one link is made.

A `tree` is a star that does not fill its hub's link: node 0 is the root, each node is the hub of
at most `FAN_OUT` others, and the hubs pass on what is not for them alone (`relay`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeAlias

from ding_lite.errors import ConfigError
from ding_lite.io.memory import check_fits
from ding_lite.settings import check_all, kind_of_topology, one_of

TOPOLOGIES = ("star", "mesh", "tree", "alone")
HUB = 0
_BYTES_OF_AN_EDGE = 160
"""Of a pair of node ids, and of its place in a set."""
"""The node that all others of a star are connected to, and the root of a tree."""
FAN_OUT = 8
"""How many children a hub of a tree has at most, unless the topology says so: `tree:4`.

What a hub sends grows with it, and how often a message is passed on shrinks with its logarithm.
With 8 a job of up to nine nodes is a star, three levels reach 585 nodes, and 15 policies of 10 MB
a second fill a hub's link of 10 Gbit/s.
"""

FIRST_TIMESTAMP_INCARNATION = 2**40
"""Incarnations from here on are instants, of nodes that nobody restarts: one never replaces a node
that is still there, as a restarted one does."""

Edge: TypeAlias = tuple[int, int]
"""Two connected nodes, the lower id first."""
Topology: TypeAlias = str | Iterable[tuple[int, int]]
"""`star`, `mesh`, `tree`, `alone`, or the pairs of connected nodes."""


@dataclass(frozen=True)
class Growth:
    """How a job grows that takes further nodes while it runs: an elastic one."""

    topology: str
    """`star` or `mesh`: which of the nodes that are there a further one is connected to."""
    first_id: int
    """The lowest id that is given to a node which names none."""


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """All that a node needs to know to take its place in a job."""

    node_id: int
    """Its number, from 0."""
    num_nodes: int
    """How many nodes the job has; 0 where a peer is to tell."""
    labels: frozenset[str]
    """The names it answers to."""
    incarnation: int = 1
    """Counts the starts of the node; nanoseconds since 1970 where no launcher counts them."""
    listen: str | None = None
    """The address where nodes with a higher id connect; None where none does."""
    dials: Mapping[int, str] = field(default_factory=dict)
    """The addresses of the peers with a lower id, by their id; "" of one that is yet to be
    found."""
    desk: str | None = None
    """Where node 0 tells the nodes of each other; None where they know their peers."""
    peers: frozenset[int] = frozenset()
    """The nodes it is connected to."""
    key_file: str | None = None
    """Where the key of the job lies, for tcp; None is the user's own key, for loopback."""
    startup_timeout: float | None = 60.0
    """Seconds within which all peers must be connected; None waits for ever."""
    linger: float = 30.0
    """Seconds that it waits, as it leaves, for a lost peer that has yet to get its events."""
    peer_timeout: float | None = None
    """Seconds without any peer after which it ends with an error; None where a launcher sees to
    that, and where it may go on."""
    world: tuple[frozenset[str], ...] = ()
    """The labels of every node of the job; none where only the peers will be known."""
    edges: frozenset[Edge] = frozenset()
    """Who is connected to whom."""
    fan_out: int = 0
    """How many children a hub has at most, where the job is a tree and hubs relay; else 0."""
    growth: Growth | None = None
    """How the job grows; None where its nodes are counted once and for all."""
    has_joined: bool = False
    """Whether the node has joined a running job that grows, and may leave without ending it."""
    job: str = ""
    """What all nodes of the job call it, and no other job; "" where nobody has named it."""
    directory: str | None = None
    """The private directory of the job, where the node writes its metrics; None writes none."""
    began: float | None = None
    """When the job began, in seconds of this machine's monotonic clock."""


def edges(topology: Topology, num_nodes: int) -> frozenset[Edge]:
    """Return who is connected to whom.

    Args:
        topology: `star` (all to node 0), `mesh` (each to each), `tree` (each to its hub, and the
            first of them to node 0), `alone` (nobody), or pairs of node ids.
        num_nodes: How many nodes there are.

    Raises:
        ConfigError: The topology is unknown, or a pair is none of two different nodes.

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
    match pair:
        case (int(one), int(other)) if not isinstance(one, bool) and not isinstance(other, bool):
            low, high = min(one, other), max(one, other)
            if 0 <= low < high < num_nodes:
                return low, high
    raise ConfigError(
        f"`topology` has the entry {pair!r}; each must be a pair of two different node ids from "
        f"0 to {num_nodes - 1}."
    )


def fan_out(topology: Topology) -> int:
    """Return how many children a hub of a tree has at most; 0 where the topology is no tree.

    Example:
        >>> fan_out("tree"), fan_out("tree:4"), fan_out("star")
        (8, 4, 0)
    """
    if not isinstance(topology, str) or kind_of_topology(topology) != "tree":
        return 0
    _, _, children = topology.partition(":")
    return int(children or FAN_OUT)


def hub_of(node: int, fan_out: int) -> int:
    """Return the hub that a node of a tree is a child of, which has a lower id; not for the root.

    Example:
        >>> [hub_of(node, 2) for node in range(1, 7)]
        [0, 0, 1, 1, 2, 2]
    """
    return (node - 1) // fan_out


def neighbours(edges: Iterable[Edge], node: int) -> frozenset[int]:
    """Return the nodes that a node is connected to.

    Example:
        >>> sorted(neighbours([(0, 1), (1, 2)], 1))
        [0, 2]
    """
    return frozenset(sum(edge) - node for edge in edges if node in edge)


def listeners(edges: Iterable[Edge]) -> frozenset[int]:
    """Return the nodes that others dial.

    Example:
        >>> sorted(listeners([(0, 1), (1, 2)]))
        [0, 1]
    """
    return frozenset(low for low, _ in edges)
