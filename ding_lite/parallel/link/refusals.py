"""Refused connections, and dropped messages that break the protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ding_lite.clock import Clock
from ding_lite.errors import AuthenticationError, DeadlineExceeded
from ding_lite.log import Throttle
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.transport.base import Link

logger = logging.getLogger(__name__)

MAX_FAULTS = 1_000
"""How many messages of one node may be dropped before its link is: its program is broken, or it
has been taken over, and reading what it sends takes time that others need."""
_MAX_SENDERS = 1_024


class Refusals:
    """Refused connections between a node and its peers, until they are connected.

    Args:
        spec: The node's place.
        clock: Measures the pauses between warnings.
    """

    def __init__(self, spec: NodeSpec, clock: Clock) -> None:
        self._spec = spec
        self._throttle = Throttle(logger, clock)
        self._refused_by: dict[int, str] = {}
        self._refused_peers: dict[int, str] = {}

    @property
    def is_refused(self) -> bool:
        """Whether a peer that this node has never been connected to refuses it."""
        return bool(self._refused_by)

    def note_refused_by(self, peer: int, reason: str, *, is_known: bool) -> None:
        """Note that a peer refuses this node.

        Args:
            peer: The peer.
            reason: Why, a sentence.
            is_known: Whether the two have been connected before: then this node tries again.
        """
        if not is_known:
            self._refused_by[peer] = reason
        self._throttle.every(
            10.0, logging.WARNING, f"refused {peer}", "node %d refused this one: %s", peer, reason
        )

    def note_refused(self, peer: int, reason: str) -> None:
        """Note that this node has refused a process that greeted as this peer."""
        self._refused_peers[peer] = reason

    def note_connected(self, peer: int) -> None:
        """Forget the refusals between this node and a peer."""
        self._refused_by.pop(peer, None)
        self._refused_peers.pop(peer, None)

    def check(self) -> None:
        """Raise if a peer refuses this node.

        Raises:
            AuthenticationError: One does; says why.
        """
        for peer, reason in self._refused_by.items():
            raise AuthenticationError(
                f"Node {peer} has refused node {self._spec.node_id}: {reason} All nodes of a job "
                f"need the same key, the same number of nodes and the same version of ding_lite."
            )

    def timed_out(self, missing: Sequence[int], timeout: float) -> DeadlineExceeded:
        """Make the error of a node with peers that have not greeted in time."""
        spec = self._spec
        peers = ", ".join(map(self._place_of, missing))
        of_all = f" of {spec.num_nodes}" if spec.num_nodes else ""
        refused = "".join(
            f" A process that greeted as node {peer} was refused: {reason}"
            for peer, reason in self._refused_peers.items()
            if peer in missing
        )
        return DeadlineExceeded(
            f"Node {spec.node_id} has waited {timeout:g} s for node {peers}{of_all}.{refused} "
            f"Were all nodes started, with the same addresses? A slow start needs a longer "
            f"`startup_timeout`."
        )

    def _place_of(self, peer: int) -> str:
        address = self._spec.dials.get(peer, "")
        return f"{peer} ({address})" if address.startswith("tcp") else f"{peer}"


class DroppedMessages:
    """Counts dropped messages, warns of them, and drops the link of a node that sends too many.

    Args:
        clock: Measures the pauses between warnings.
        owner: Returns the node that a link is proved to belong to, if any.
        drop: Drops a link.
    """

    def __init__(
        self, clock: Clock, *, owner: Callable[[Link], int | None], drop: Callable[[Link], None]
    ) -> None:
        self.count = 0
        """Messages that were dropped: malformed, or not for this node."""
        self.num_faults = 0
        """Those of them that were a fault of their sender, and not merely late."""
        self._throttle = Throttle(logger, clock)
        self._owner = owner
        self._drop = drop
        self._faults: dict[Link | int, int] = {}

    def add(self, reason: str, link: Link | None = None) -> None:
        """Count a dropped message, and log some of them.

        Args:
            reason: The fault of the message.
            link: Where it came from, if the sender is at fault; after too many of its faults the
                link is dropped as well.
        """
        self.count += 1
        if link is not None:
            self.num_faults += 1
            self._count_fault(link)
        self._throttle.every(
            10.0,
            logging.WARNING,
            "rejected",  # not the reason: an attacker could fill the memory with reasons
            "dropped a message (%d in all): %s",
            self.count,
            reason,
        )

    def _count_fault(self, link: Link) -> None:
        owner = self._owner(link)
        sender = link if owner is None else owner
        faults = self._faults.pop(sender, 0) + 1
        if faults > MAX_FAULTS:
            logger.warning(
                "dropped the link to %s after %d malformed messages",
                "a node" if owner is None else f"node {owner}",
                faults,
            )
            self._drop(link)
            return
        self._faults[sender] = faults  # as the newest
        if len(self._faults) > _MAX_SENDERS:
            del self._faults[next(iter(self._faults))]
