"""How the nodes of a job find each other where each of them only knows node 0.

Node 0 listens at an address that everybody is given. The others listen wherever there is room,
announce to node 0 where that is, and ask it for the addresses of the peers that they dial.
Its answer comes when one of these has announced itself, and again when one has come back at
another address; so a node that is started anew elsewhere is followed there.

What is ugly here and why: not everybody is a peer of node 0. In a tree, or where edges are
listed, a node that is none knocks at the same door all the same, over a link that is for asking
and no edge of the topology. So node 0 then has two routers on one transport, one for its
peers and one for those who only ask, and each of these has a second router as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from ding_lite.errors import AuthenticationError, ConfigError, PeerLost, RemoteError
from ding_lite.parallel.launch.membership import ElasticRouter
from ding_lite.parallel.network.address import ANY_HOST, Address
from ding_lite.parallel.network.interfaces import reachable_at
from ding_lite.parallel.network.security import check_dialling
from ding_lite.parallel.network.topology import HUB, NodeSpec
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.zeromq.shared_transport import SharedTransport
from ding_lite.parallel.tree.router import make_router

logger = logging.getLogger(__name__)

ANNOUNCE = "ding_lite.announce"
"""The name under which node 0 is told where a node listens, and asked where others do."""
MAX_ADDRESS = 300
"""Characters of an address; a host name has 255 at most."""


class AddressBook:
    """What node 0 knows of where the others listen; all of it is called on its transport's thread.

    Args:
        num_nodes: How many nodes the job has.
    """

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._where: dict[int, str] = {}
        self._waiting: dict[int, tuple[dict[int, str], Future[dict[int, str]]]] = {}

    def announce(self, peer: int, address: object, wanted: object) -> Future[dict[int, str]]:
        """Take down where a node listens, and answer when there is news for it.

        Args:
            peer: The node, as it has proved to be.
            address: Where it listens; "" where nobody dials it.
            wanted: The nodes that it dials, each with the address that it knows; "" is none.

        Returns:
            The other addresses of those nodes, as soon as there is one.

        Raises:
            ConfigError: What it says cannot be.
        """
        known = checked(wanted, self._num_nodes)
        if address != "":
            self._where[peer] = checked({peer: address}, self._num_nodes)[peer]
        answer: Future[dict[int, str]] = Future()
        self._waiting[peer] = known, answer  # who asks again has given up the question before
        for asker in (peer, *[other for other in self._waiting if other != peer]):
            self._tell(asker)
        return answer

    def note(self, peer: int, is_there: bool) -> None:
        """Forget a node that has gone: somebody else may get its port."""
        if not is_there:
            self._where.pop(peer, None)
            self._waiting.pop(peer, None)

    def _tell(self, asker: int) -> None:
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
    """Return what another node has said of where nodes listen, if that can be.

    Raises:
        ConfigError: It cannot: it is no dict of node ids and tcp addresses, each "" at most.

    Example:
        >>> checked({1: "tcp://10.0.0.7:50515", 2: ""}, 3)
        {1: 'tcp://10.0.0.7:50515', 2: ''}
    """
    if not isinstance(addresses, dict):
        raise ConfigError(f"{addresses!r:.80} was said of where nodes listen; a dict was expected.")
    for node, address in addresses.items():
        if not isinstance(node, int) or isinstance(node, bool) or not 0 < node < num_nodes:
            raise ConfigError(
                f"{node!r:.80} was given for a node; a number from 1 to {num_nodes - 1} was "
                f"expected."
            )
        is_text = isinstance(address, str) and len(address) <= MAX_ADDRESS
        if not is_text or (address and not _is_place(address)):
            raise ConfigError(
                f"{address!r:.80} was given as where node {node} listens; an address such as "
                f"tcp://10.0.0.7:50515 was expected."
            )
    return dict(addresses)


def _is_place(text: str) -> bool:
    """Tell whether an address is one that can be dialled."""
    place = Address.parse(text)
    return place.scheme == "tcp" and place.port > 0 and place.place not in ANY_HOST


class Follower:
    """Announces a node to node 0, and dials its peers wherever they are.

    Args:
        spec: The node's place. Peers that it dials without knowing where are looked for.
    """

    def __init__(self, spec: NodeSpec) -> None:
        self._spec = spec
        self._known = {peer: "" for peer, address in spec.dials.items() if not address}
        self._asked: Future[Any] | None = None
        self._ask: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def begin(self, router: NodeRouter, desk: NodeRouter) -> None:
        """Ask from now on, whenever node 0 is there.

        Args:
            router: The node's own.
            desk: Which of its routers is connected to node 0.
        """
        self._ask = partial(self._announce, router, desk)
        self.note(HUB, HUB in desk.peers)  # it may have come before

    def note(self, peer: int, is_there: bool) -> None:
        """Ask node 0 as it is there now, for the first time or again."""
        if peer == HUB and is_there:
            self._ask()

    def _announce(self, router: NodeRouter, desk: NodeRouter) -> None:
        with self._lock:
            address = reachable_at(router.address, self._spec.desk)
            answer = desk.ask(HUB, ANNOUNCE, address, dict(self._known))
            self._asked = answer
        answer.add_done_callback(partial(self._hear, router))

    def _hear(self, router: NodeRouter, answer: Future[Any]) -> None:
        if answer is not self._asked or isinstance(answer.exception(), PeerLost):
            return  # another question has taken its place, or will when node 0 is back
        try:
            news = checked(answer.result(), self._spec.num_nodes)
            for address in news.values():
                check_dialling(Address.parse(address), key_file=self._spec.key_file)
        except (RemoteError, ConfigError) as error:
            logger.warning(
                "node %d does not learn from node 0 where its peers are: %s",
                self._spec.node_id,
                error,
            )
            return
        for peer in self._known.keys() & news.keys():
            self._known[peer] = news[peer]
            router.redial(peer, news[peer])
        if self._known:
            self._ask()


class Presence:
    """A node's router and, beside it, what makes the nodes of its job find each other.

    Args:
        spec: The node's place.

    Raises:
        ConfigError: Other machines can reach where it listens, or it dials another machine, and
            there is no key.
        TransportError: The address to listen at cannot be taken.
    """

    def __init__(self, spec: NodeSpec) -> None:
        self._spec = spec
        self._aside: NodeRouter | None = None
        """A second router, between node 0 and those who only ask it."""
        self.router: NodeRouter
        """The node's own."""
        if spec.node_id == HUB and spec.desk is not None:
            self.router = self._with_desk(spec)
        elif spec.desk is not None and (spec.listen or "" in spec.dials.values()):
            self.router = self._with_follower(spec)
        else:
            self.router = ElasticRouter(spec) if spec.growth else make_router(spec)

    def _with_desk(self, spec: NodeSpec) -> NodeRouter:
        book = AddressBook(spec.num_nodes)
        services = {ANNOUNCE: book.announce}
        if spec.growth is not None:  # a star or a mesh, where all are peers of node 0
            return ElasticRouter(spec, services=services, on_peer=book.note)
        make = partial(make_router, services=services, on_peer=book.note)
        guests = frozenset(range(1, spec.num_nodes)) - spec.peers
        if not guests:
            return make(spec)
        door = SharedTransport(spec.node_id, spec.peers, guests, key_file=spec.key_file)
        self._aside = make(aside(spec, guests), transport=door.others)
        try:
            return make(spec, transport=door)
        except BaseException:
            self._aside.close(good_bye=False)
            raise

    def _with_follower(self, spec: NodeSpec) -> NodeRouter:
        follower = Follower(spec)
        if HUB in spec.peers:
            make = ElasticRouter if spec.growth else make_router
            router = make(spec, on_peer=follower.note)
            follower.begin(router, router)
            return router
        router = make_router(spec)
        try:
            self._aside = make_router(aside(spec, frozenset({HUB})), on_peer=follower.note)
        except BaseException:
            router.close(good_bye=False)
            raise
        follower.begin(router, self._aside)
        return router

    def wait_ready(self) -> None:
        """Block until node 0 and every peer have introduced themselves.

        Raises:
            DeadlineExceeded: Somebody did not in time; says who.
            AuthenticationError: Somebody has refused this node; says why.
        """
        if self._aside is not None and self._spec.node_id != HUB:
            self._ask_for_entry(self._aside)
        self.router.wait_ready()

    def _ask_for_entry(self, desk: NodeRouter) -> None:
        """Wait for node 0; what is at its address may be the only peer to dial instead."""
        try:
            desk.wait_ready()
        except AuthenticationError as refusal:
            if [*self._spec.dials.values()] != [""]:
                raise
            [peer] = self._spec.dials
            self.router.redial(peer, str(self._spec.desk))
            try:
                self.router.wait_ready()
            except AuthenticationError:
                raise refusal from None

    def close(self, *, good_bye: bool, linger: float | None = None) -> None:
        """Leave, as `NodeRouter.close` does."""
        try:
            if self._aside is not None:
                self._aside.close(good_bye=good_bye, linger=linger)
        finally:
            self.router.close(good_bye=good_bye, linger=linger)


def aside(spec: NodeSpec, others: frozenset[int]) -> NodeSpec:
    """Return the place that a node takes only to ask or to be asked.

    Args:
        spec: Its place in the job.
        others: Whom it meets there.
    """
    is_hub = spec.node_id == HUB
    return replace(
        spec,
        listen=spec.listen if is_hub else None,
        dials={} if is_hub else {HUB: str(spec.desk)},
        peers=others,
        edges=frozenset((HUB, max(spec.node_id, other)) for other in others),
        fan_out=0,
        peer_timeout=None,
        directory=None,
    )
