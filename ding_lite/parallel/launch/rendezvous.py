"""Rendezvous: nodes that know only the address of node 0 obtain the addresses of their peers.

Node 0 listens at a known address. The other nodes listen on any free port, announce their address
to node 0, and request the addresses of the peers that they dial. Node 0 answers when one of these
peers has announced its address, and again when one has announced another address. So a node that
restarts elsewhere is dialled there.

Not every node is a peer of node 0. In a tree, or with listed edges, the other nodes still connect
to node 0, over a link for rendezvous that is no edge of the topology. So node 0 has two routers on
one transport, one for its peers and one for rendezvous only, and each node that is not its peer has
a second router as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from ding_lite.clock import Deadline
from ding_lite.errors import ConfigError, PeerLost, RemoteError
from ding_lite.parallel.launch.membership import router_of
from ding_lite.parallel.network.address import Address, can_be_dialled
from ding_lite.parallel.network.interfaces import reachable_at
from ding_lite.parallel.network.security import check_dialling
from ding_lite.parallel.network.topology import HUB, NodeSpec
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.zeromq.transport import ZeroMQTransport

logger = logging.getLogger(__name__)

ANNOUNCE = "ding_lite.announce"
"""The call to node 0 that announces an address and requests the addresses of others."""


class AddressBook:
    """The announced addresses of all nodes, kept by node 0; used on its transport's thread.

    `asking` are the nodes that need addresses before they can start.
    """

    def __init__(self, num_nodes: int, asking: Iterable[int] = ()) -> None:
        self._num_nodes = num_nodes
        self._asking = set(asking)
        self._changed = threading.Condition()
        self._where: dict[int, str] = {}
        self._waiting: dict[int, tuple[dict[int, str], Future[dict[int, str]]]] = {}

    def announce(self, peer: int, address: object, wanted: object) -> Future[dict[int, str]]:
        """Record the address of a node; answer when there are new addresses for it.

        `wanted` maps the nodes that it dials to their last known addresses ("" for none). The
        answer maps moved nodes to their new addresses, as soon as there is one.
        """
        known = checked(wanted, self._num_nodes)
        if "" not in known.values():
            self._served(peer)
        if address != "":
            self._where[peer] = checked({peer: address}, self._num_nodes)[peer]
        answer: Future[dict[int, str]] = Future()
        self._waiting[peer] = known, answer  # a second request replaces the first
        for asker in (peer, *[other for other in self._waiting if other != peer]):
            self._answer_if_changed(asker)
        return answer

    def note(self, peer: int, is_there: bool) -> None:
        """Forget the address of a disconnected node: another process may get its port."""
        if not is_there:
            self._where.pop(peer, None)
            self._waiting.pop(peer, None)
            self._served(peer)

    def wait_served(self, deadline: Deadline) -> None:
        """Wait until no node that has to start needs an address; from any other thread."""
        with self._changed:
            deadline.wait(self._changed, lambda: not self._asking)

    def _served(self, peer: int) -> None:
        with self._changed:
            self._asking.discard(peer)
            self._changed.notify_all()

    def _answer_if_changed(self, asker: int) -> None:
        known, answer = self._waiting[asker]
        news = {
            node: self._where[node]
            for node, address in known.items()
            if self._where.get(node, address) != address
        }
        if news or not known:
            del self._waiting[asker]
            answer.set_result(news)


def checked(addresses: object, num_nodes: int) -> dict[int, str]:
    if not isinstance(addresses, dict):
        raise ConfigError(f"{addresses!r:.80} was sent as addresses of nodes; a dict was expected.")
    for node, address in addresses.items():
        if not isinstance(node, int) or isinstance(node, bool) or not 0 < node < num_nodes:
            raise ConfigError(
                f"{node!r:.80} was given for a node; a number from 1 to {num_nodes - 1} was "
                f"expected."
            )
        if not isinstance(address, str) or (address and not can_be_dialled(address)):
            raise ConfigError(
                f"{address!r:.80} was sent as the address of node {node}; one such as "
                f"tcp://10.0.0.7:50515 was expected."
            )
    return dict(addresses)


class AddressFollower:
    """Announces a node to node 0, and dials peers without a known address where node 0 says."""

    def __init__(self, spec: NodeSpec) -> None:
        self._spec = spec
        self._known = {peer: "" for peer, address in spec.dials.items() if not address}
        self._asked: Future[Any] | None = None
        self._ask: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def begin(self, router: NodeRouter, rendezvous: NodeRouter) -> None:
        """Send a request now if node 0 is connected, and whenever it connects."""
        self._ask = partial(self._announce, router, rendezvous)
        self.note(HUB, HUB in rendezvous.peers)  # it may be connected already

    def note(self, peer: int, is_there: bool) -> None:
        """Send a request when node 0 connects, for the first time or again."""
        if peer == HUB and is_there:
            self._ask()

    def _announce(self, router: NodeRouter, rendezvous: NodeRouter) -> None:
        with self._lock:
            address = reachable_at(router.address, self._spec.rendezvous)
            answer = rendezvous.ask(HUB, ANNOUNCE, address, dict(self._known))
            self._asked = answer
        answer.add_done_callback(partial(self._apply_answer, router))

    def _apply_answer(self, router: NodeRouter, answer: Future[Any]) -> None:
        if answer is not self._asked or isinstance(answer.exception(), PeerLost):
            return  # superseded, or to be repeated when node 0 is back
        try:
            news = checked(answer.result(), self._spec.num_nodes)
            for address in news.values():
                check_dialling(Address.parse(address), key_file=self._spec.key_file)
        except (RemoteError, ConfigError) as error:
            logger.warning(
                "node %d cannot get the addresses of its peers from node 0: %s",
                self._spec.node_id,
                error,
            )
            return
        for peer in self._known.keys() & news.keys():
            self._known[peer] = news[peer]
            router.links.redial(peer, news[peer])
        if self._known:
            self._ask()


class RendezvousNode:
    """A node's router together with its part in the rendezvous."""

    def __init__(self, spec: NodeSpec) -> None:
        self._rendezvous_router: NodeRouter | None = None
        """A second router, if this node is no peer of node 0."""
        self._book: AddressBook | None = None
        self.router: NodeRouter
        if spec.node_id == HUB and spec.rendezvous is not None:
            self.router = self._start_hub(spec)
        elif spec.rendezvous is not None and (spec.listen or spec.peers - {HUB}):
            self.router = self._start_follower(spec)
        else:
            self.router = router_of(spec)

    def _start_hub(self, spec: NodeSpec) -> NodeRouter:
        asking = {node for edge in spec.edges if HUB not in edge for node in edge}
        self._book = book = AddressBook(spec.num_nodes, asking)
        make = partial(router_of, services={ANNOUNCE: book.announce}, on_peer=book.note)
        others = frozenset(range(1, spec.num_nodes)) - spec.peers
        if not others:
            return make(spec)
        shared = ZeroMQTransport(
            spec.node_id, peers=spec.peers, key_file=spec.key_file, other_ids=others
        )
        rendezvous = make(rendezvous_spec(spec, others), transport=shared.others)
        return make(spec, transport=shared, beside=rendezvous)

    def _start_follower(self, spec: NodeSpec) -> NodeRouter:
        follower = AddressFollower(spec)
        if HUB in spec.peers:
            router = router_of(spec, on_peer=follower.note)
            follower.begin(router, router)
            return router
        rendezvous = router_of(rendezvous_spec(spec, frozenset({HUB})), on_peer=follower.note)
        router = router_of(spec, beside=rendezvous)
        follower.begin(router, rendezvous)
        self._rendezvous_router = rendezvous
        return router

    def wait_ready(self) -> None:
        if self._rendezvous_router is not None:
            self._rendezvous_router.wait_ready()
        self.router.wait_ready()

    def wait_served(self, deadline: Deadline) -> None:
        """On node 0, wait until the other nodes have the addresses that they need to start."""
        if self._book is not None:
            self._book.wait_served(deadline)


def rendezvous_spec(spec: NodeSpec, others: frozenset[int]) -> NodeSpec:
    is_hub = spec.node_id == HUB
    return replace(
        spec,
        listen=spec.listen if is_hub else None,
        dials={} if is_hub else {HUB: str(spec.rendezvous)},
        peers=others,
        edges=frozenset((HUB, max(spec.node_id, other)) for other in others),
        fan_out=0,
        peer_timeout=None,
        directory=None,
    )
