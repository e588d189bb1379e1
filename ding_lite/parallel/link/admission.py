"""Who did not let whom in, and what a node says of it when it has waited in vain."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ding_lite.clock import Clock
from ding_lite.errors import AuthenticationError, DeadlineExceeded
from ding_lite.log import Throttle
from ding_lite.parallel.network.topology import NodeSpec

logger = logging.getLogger(__name__)


class Admission:
    """The refusals between a node and its peers, until they let each other in.

    Args:
        spec: Who this node is and whom it is connected to.
        clock: What the pauses between warnings are measured by.
    """

    def __init__(self, spec: NodeSpec, clock: Clock) -> None:
        self._spec = spec
        self._throttle = Throttle(logger, clock)
        self._refused_by: dict[int, str] = {}
        self._turned_away: dict[int, str] = {}

    @property
    def is_refused(self) -> bool:
        """Whether a peer that has never let this node in does not want to."""
        return bool(self._refused_by)

    def refused_by(self, peer: int, reason: str, *, is_known: bool) -> None:
        """Note that a peer refuses this node.

        Args:
            peer: The peer.
            reason: Why, a sentence.
            is_known: Whether the two have been connected before: then it goes on trying.
        """
        if not is_known:
            self._refused_by[peer] = reason
        self._throttle.every(
            10.0, logging.WARNING, f"refused {peer}", "node %d refused this one: %s", peer, reason
        )

    def turned_away(self, peer: int, reason: str) -> None:
        """Note that this node has refused somebody who said to be this peer."""
        self._turned_away[peer] = reason

    def let_in(self, peer: int) -> None:
        """Note that a peer is connected: what was before does not count any more."""
        self._refused_by.pop(peer, None)
        self._turned_away.pop(peer, None)

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

    def waited_in_vain(self, missing: Sequence[int], timeout: float) -> DeadlineExceeded:
        """Make the error of a node that some peers have not introduced themselves to."""
        spec = self._spec
        who = ", ".join(map(self._place_of, missing))
        of_all = f" of {spec.num_nodes}" if spec.num_nodes else ""
        turned_away = "".join(
            f" Somebody came as node {peer} and was turned away: {reason}"
            for peer, reason in self._turned_away.items()
            if peer in missing
        )
        return DeadlineExceeded(
            f"Node {spec.node_id} has waited {timeout:g} s for node {who}{of_all}.{turned_away} "
            f"Were all nodes started, with the same addresses? A slow start needs a longer "
            f"`startup_timeout`."
        )

    def _place_of(self, peer: int) -> str:
        address = self._spec.dials.get(peer, "")
        return f"{peer} ({address})" if address.startswith("tcp") else f"{peer}"
