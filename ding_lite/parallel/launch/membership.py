"""Membership of an elastic job: node 0 keeps the registry and sends a roster to the others.

A node that joins connects to node 0 under one of a few reserved ids (entrances), requests a
place, and disconnects; then it connects under the id that it was given. Node 0 admits one node at
a time, so that each knows all earlier members and dials them. Node 0 sends the roster, the labels
and addresses of all members, to every node.

The place of a joined node is free again when the node says good-bye, or when it has been lost for
`LOST_GRACE_S`.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from ding_lite.clock import SYSTEM_CLOCK, Deadline
from ding_lite.errors import ConfigError, DeadlineExceeded
from ding_lite.parallel.network.address import ANY_HOST, Address, can_be_dialled
from ding_lite.parallel.network.interfaces import reachable_at
from ding_lite.parallel.network.topology import ENTRANCES, HUB, Growth, NodeSpec
from ding_lite.parallel.router.calls import Handler
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.zeromq.transport import ZeroMQTransport
from ding_lite.parallel.tree.relay import TreeRouter
from ding_lite.parallel.wire.messages import MAX_NODES
from ding_lite.runtime.messaging.labels import (
    check_labels,
    check_own_labels,
    count_roles,
    node_labels,
)

JOIN = "ding_lite.join"
"""The call to node 0 that requests a place."""
ROSTER = "ding_lite.roster"
"""The call by which node 0 sends a node the roster; the answer is the node's address."""
LOST_GRACE_S = 10.0
"""Seconds that the place of a lost node is reserved for it."""
NUM_EXPECTED = 256
"""Ids beyond the first nodes that a restarted node accepts before it has the roster, because ZeroMQ
never dials a node again that has refused its key once."""
JOIN_TIMEOUT_S = 10.0
"""Seconds within which a node must take an assigned place."""

logger = logging.getLogger(__name__)

OnPeer = Callable[[int, bool], None]


@dataclass(frozen=True)
class JobMember:
    """The labels and the address of a node of the job."""

    labels: frozenset[str]
    address: str = ""
    """The address that others dial; "" if no node dials it."""

    def as_tree(self) -> list[Any]:
        return [sorted(self.labels), self.address]


class _Request(NamedTuple):
    requested_id: int | None
    roles: frozenset[str]
    labels: frozenset[str]
    answer: Future[Any]


class ElasticRouter(NodeRouter):
    """The router of a node of an elastic job."""

    def __init__(
        self,
        spec: NodeSpec,
        *,
        services: Mapping[str, Handler] | None = None,
        on_peer: OnPeer = lambda peer, is_there: None,
    ) -> None:
        growth = spec.growth or Growth("star", 1)
        # Before the base, which calls it as soon as a node connects.
        self._membership: Registry | Roster
        shared, entrance = None, None
        if spec.node_id == HUB:
            self._membership = registry = Registry(self, spec, growth)
            if growth.first_id < spec.num_nodes:  # then any nodes may be the first
                spec = replace(spec, world=())
            ids = frozenset(ENTRANCES)
            shared = ZeroMQTransport(HUB, peers=spec.peers, key_file=spec.key_file, other_ids=ids)
            apart: dict[str, Any] = {"growth": None, "peer_timeout": None, "directory": None}
            entrance = NodeRouter(
                replace(spec, peers=ids, edges=frozenset(), **apart),
                transport=shared.others,
                services={JOIN: registry.join},
            )
        else:
            self._membership = Roster(self, spec, growth)

        def note(peer: int, is_there: bool) -> None:
            on_peer(peer, is_there)
            self._membership.note(peer, is_there)

        services = {**(services or {}), ROSTER: self._membership.receive_roster}
        super().__init__(spec, transport=shared, services=services, on_peer=note, beside=entrance)
        if spec.node_id == HUB:
            logger.info("further nodes join by DING_LITE_ATTACH_TO=%s", _to_dial(self.address))
        if spec.listen is not None:
            self.expect(range(spec.num_nodes, spec.num_nodes + NUM_EXPECTED))

    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until every peer is connected and the job has its minimum of nodes."""
        deadline = Deadline.after(self._spec.startup_timeout if timeout is None else timeout)
        super().wait_ready(timeout)
        self._membership.wait_complete(deadline)

    def _adopt(self, peer: int) -> bool:
        return self._membership.adopt(peer)

    def _tick(self) -> None:
        super()._tick()
        self._membership.tick()


def _to_dial(address: str | None) -> str:
    place = Address.parse(address or "")
    return str(replace(place, place=socket.gethostname()) if place.place in ANY_HOST else place)


def router_of(spec: NodeSpec, **parts: Any) -> NodeRouter:
    """Make the router of a node in an elastic job, in a tree or in any other job."""
    kind = ElasticRouter if spec.growth else TreeRouter if spec.fan_out else NodeRouter
    return kind(spec, **parts)


class Registry:
    """The members of an elastic job, kept by node 0; used on its transport's thread."""

    def __init__(self, router: NodeRouter, spec: NodeSpec, growth: Growth) -> None:
        self._router = router
        self._spec = spec
        self._growth = growth
        self._members = {node: JobMember(labels) for node, labels in enumerate(spec.world)}
        self._members[HUB] = JobMember(spec.labels)
        self._joined: dict[int, Deadline] = {}
        """Joined nodes; a disconnected one has a deadline by which it must be connected again."""
        self._seen: set[int] = set()
        self._queue: deque[_Request] = deque()
        self._joining: int | None = None

    # -- joining -----------------------------------------------------------------------------

    def join(self, asker: int, requested_id: Any, roles: Any, labels: Any) -> Future[Any]:
        """Assign a place after earlier requests; answer with id, labels and members of the job."""
        if requested_id is not None and (
            type(requested_id) is not int or not 0 < requested_id < MAX_NODES
        ):  # each node has a list of all numbers up to the highest
            raise ConfigError(
                f"`node_ids` is [{requested_id!r:.80}]; a number from 1 to {MAX_NODES - 1} was "
                f"expected."
            )
        [counted] = count_roles([_names(roles)])
        named = frozenset(role for role in counted if f"{role}.0" in counted)
        request = _Request(requested_id, named, check_own_labels(_names(labels)), Future())
        self._queue.append(request)
        self._admit_next()
        return request.answer

    def _admit_next(self) -> None:
        while self._joining is None and self._queue:
            request = self._queue.popleft()
            try:
                self._joining = self._free_id(request.requested_id)
            except ConfigError as error:
                request.answer.set_exception(error)
            else:
                self._admit(self._joining, request)

    def _admit(self, node: int, request: _Request) -> None:
        labels = self._labels_for(node, request)
        self._joined[node] = Deadline.after(JOIN_TIMEOUT_S, SYSTEM_CLOCK)
        self._seen.add(node)
        self._router.admit(node)
        self._record(node, JobMember(labels))
        answer = {
            "node_id": node,
            "num_nodes": self._spec.num_nodes,
            "topology": self._growth.topology,
            "labels": sorted(labels),
            "job": self._spec.job,
        }
        # In a mesh the others must admit the joining node before it dials them.
        is_mesh = self._growth.topology == "mesh"
        others = [peer for peer in self._router.peers if peer != node] if is_mesh else []
        waiting = set(others)

        def note_answer(peer: int, _: object) -> None:
            waiting.discard(peer)
            if not waiting and not request.answer.done():
                there = [HUB, *(other for other in self._router.peers if other != node)]
                nodes = self._roster()
                nodes.pop(node, None)
                request.answer.set_result(answer | {"there": there, "nodes": nodes})

        for peer in others:
            self._send_roster(peer).add_done_callback(partial(note_answer, peer))
        if not others:
            note_answer(HUB, None)

    def _free_id(self, requested_id: int | None) -> int:
        first, size = self._growth.first_id, self._spec.num_nodes
        if requested_id is None:
            busy = self._joined.keys() | (self._seen & set(range(size))) | set(self._router.peers)
            return next(node for node in range(first, ENTRANCES[0]) if node not in busy)
        if requested_id in self._joined or requested_id in self._router.peers:
            raise ConfigError(
                f"There is a node {requested_id} already. Without a number, a free one is given."
            )
        if requested_id < size and self._growth.topology == "mesh":
            raise ConfigError(
                f"Node {requested_id} is one of the {size} nodes with which this mesh began, which "
                f"may take that place again. Leave the number out, or take one from {size} on."
            )
        return requested_id

    def _labels_for(self, node: int, request: _Request) -> frozenset[str]:
        others = (member.labels for other, member in self._members.items() if other != node)
        taken = frozenset().union(*others)
        roles = set(request.roles)
        for role in request.roles:
            numbers = range(len(self._members) + 1)
            roles.add(next(f"{role}.{k}" for k in numbers if f"{role}.{k}" not in taken))
        return node_labels(node, distributed=True, roles=roles, extra=request.labels)

    # -- members -----------------------------------------------------------------------------

    def note(self, peer: int, is_there: bool) -> None:
        if is_there:
            self._seen.add(peer)
            labels = self._router.labels_of(peer)
            known = self._members.get(peer)
            if known is None or known.labels != labels:
                self._record(peer, JobMember(labels, "" if known is None else known.address))
            if peer in self._joined:
                self._joined[peer] = Deadline.after(None)
            self._send_roster(peer).add_done_callback(lambda _: self._finish_join(peer))
        elif peer in self._joined:
            session = self._router.links.sessions.get(peer)
            if session is None or session.has_left:
                self._remove(peer, "node_left")
            else:
                self._joined[peer] = Deadline.after(LOST_GRACE_S, SYSTEM_CLOCK)

    def adopt(self, peer: int) -> bool:
        """Admit a node that joined an earlier incarnation of node 0, unless its place was freed."""
        if peer in self._members:
            return False
        self._joined[peer] = Deadline.after(LOST_GRACE_S, SYSTEM_CLOCK)
        self._router.admit(peer)
        return True

    def tick(self) -> None:
        """Free the places of nodes that have been disconnected for too long."""
        for node in [node for node, back_by in self._joined.items() if back_by.expired]:
            self._remove(node, "node_lost")

    def receive_roster(self, asker: int, *sent: Any) -> Any:
        raise ConfigError(f"Node {asker} sent a roster to node 0, which keeps the registry.")

    def wait_complete(self, deadline: Deadline) -> None:
        """Do nothing: node 0 is complete when all its peers are connected."""

    def _finish_join(self, peer: int) -> None:
        for other in self._router.peers:
            if other != peer:
                self._send_roster(other)
        self._settle(peer)

    def _settle(self, node: int) -> None:
        if node == self._joining:
            self._joining = None
            self._admit_next()

    def _send_roster(self, peer: int, gone: Mapping[int, str] | None = None) -> Future[Any]:
        answer = self._router.ask(peer, ROSTER, self._roster(), dict(gone or {}))
        answer.add_done_callback(partial(self._record_address, peer))
        return answer

    def _roster(self) -> dict[int, Any]:
        """Return the nodes that have come and have not left, by their numbers."""
        come = {HUB, *self._seen}
        return {node: member.as_tree() for node, member in self._members.items() if node in come}

    def _record_address(self, peer: int, answer: Future[Any]) -> None:
        if answer.exception() is not None or peer not in self._members:
            return  # it is gone, and sends its address when it is back
        address = answer.result()
        if not isinstance(address, str) or (address and not can_be_dialled(address)):
            # With it no other node could join any more.
            self._router.links.dropped.add(f"Node {peer} sent the address {address!r:.80}.")
        else:
            self._members[peer] = replace(self._members[peer], address=address)

    def _record(self, node: int, member: JobMember) -> None:
        self._members[node] = member
        self._router.note_labels(node, member.labels)

    def _remove(self, node: int, event: str) -> None:
        del self._joined[node]
        self._seen.discard(node)
        self._members[node] = JobMember(frozenset())
        self._router.dismiss(node)
        self._router.note_labels(node, frozenset())
        for peer in self._router.peers:
            self._send_roster(peer, {node: event})
        self._settle(node)


class Roster:
    """The members of an elastic job, as node 0 has sent them to this node."""

    def __init__(self, router: NodeRouter, spec: NodeSpec, growth: Growth) -> None:
        self._router = router
        self._spec = spec
        self._is_mesh = growth.topology == "mesh"
        self._known = {node for node, labels in enumerate(spec.world) if labels}
        # The nodes to redial. If node 0 has an address book, `AddressFollower` dials the others.
        has_book = spec.rendezvous is not None
        self._dialled = {peer: at for peer, at in spec.dials.items() if at or not has_book}
        self._gone: set[int] = set()
        self._has_roster = False

    def receive_roster(self, asker: int, nodes: Any, gone: Any) -> str:
        """Apply a roster from node 0; return the address of this node."""
        if asker != HUB or not isinstance(gone, dict):
            raise ConfigError(f"Node {asker} sent a roster; only node 0 sends one.")
        for node, place in read_roster(nodes).items():
            if node != self._spec.node_id:
                self._learn(node, *place)
        for node, event in gone.items():
            if type(node) is int and node in self._known:
                self._known.remove(node)
                self._gone.add(node)
                self._dismiss(node, str(event))
        with self._router.links.lock:
            self._has_roster = True
            self._router.links.changed.notify_all()
        towards = self._spec.dials.get(HUB) or self._spec.rendezvous
        return reachable_at(self._router.address, towards)

    def _learn(self, node: int, labels: frozenset[str], address: str) -> None:
        is_new = node not in self._known
        self._gone.discard(node)
        self._known.add(node)
        is_peer = self._is_mesh or node == HUB
        if self._is_mesh:
            self._router.admit(node)
            if address and self._dialled.get(node, address) != address:
                self._dialled[node] = address
                self._router.links.redial(node, address)
        is_news = is_new and self._has_roster and not is_peer
        self._router.note_labels(node, labels, "node_joined" if is_news else "")

    def _dismiss(self, node: int, event: str) -> None:
        if self._is_mesh and event == "node_left" and node in self._router.peers:
            return  # it has left node 0, and is about to leave this one: see `note`
        if self._is_mesh:
            self._router.dismiss(node)
            self._dialled.pop(node, None)  # a node that gets this number later dials by itself
        self._router.note_labels(node, frozenset(), "" if self._is_mesh else event)

    def adopt(self, peer: int) -> bool:
        """Admit a node of a mesh that has connected before the roster names it."""
        is_adopted = self._is_mesh and peer not in self._gone
        if is_adopted:
            self._router.admit(peer)
        return is_adopted

    def note(self, peer: int, is_there: bool) -> None:
        """Drop a node that has disconnected, if the last roster says that it leaves."""
        if not is_there and peer in self._gone:
            self._dismiss(peer, "node_left")

    def tick(self) -> None:
        """Do nothing: the deadlines are kept by node 0."""

    def wait_complete(self, deadline: Deadline) -> None:
        changed = self._router.links.changed
        with changed:
            if deadline.wait(changed, lambda: not self._missing()):
                return
            missing = ", ".join(map(str, self._missing()))
        raise DeadlineExceeded(
            f"Node {self._spec.node_id} is connected to node 0 of a job of at least "
            f"{self._spec.num_nodes} nodes, of which {missing} have not joined in time. Were all "
            f"started? A slow start needs a longer `startup_timeout`."
        )

    def _missing(self) -> list[int]:
        known, num_nodes = {self._spec.node_id, *self._known}, self._spec.num_nodes
        missing = [node for node in range(num_nodes) if node not in known]
        return missing if self._is_mesh else missing[: max(0, num_nodes - len(known))]


def _names(sent: Any) -> list[str]:
    if not isinstance(sent, list | tuple | set):
        raise ConfigError(f"{sent!r:.80} was sent as labels; a list of names was expected.")
    return [*sent]


def read_roster(nodes: Any) -> dict[int, tuple[frozenset[str], str]]:
    found: dict[int, tuple[frozenset[str], str]] = {}
    for node, place in nodes.items() if isinstance(nodes, dict) else [(None, nodes)]:
        match place:
            case [list(labels), str(address)] if type(node) is int and 0 <= node < MAX_NODES:
                found[node] = check_labels(labels), address
            case _:
                raise ConfigError(
                    f"{place!r:.80} was sent as a member; labels and an address were expected."
                )
    return found
