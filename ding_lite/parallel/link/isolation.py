"""Detects that a node is cut off from its job: it has lost its place, or all of its peers.

All methods are called with the lock of the node's links held.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ding_lite.errors import NodeReplaced, PeerLost
from ding_lite.parallel.link.session import Session
from ding_lite.parallel.network.topology import HUB, NodeSpec

logger = logging.getLogger(__name__)


class Isolation:
    """Detects that a node cannot reach its job."""

    def __init__(self, spec: NodeSpec, sessions: Mapping[int, Session]) -> None:
        self._spec = spec
        self._sessions = sessions
        self._replaced: NodeReplaced | None = None
        self._is_settled = False
        self._has_warned = False
        """Whether the user knows that this node waits for a lost peer."""

    def note_refused(self, peer: int, reason: str) -> None:
        """Note that this node has lost its place, as a peer that was connected refuses it."""
        self._replaced = NodeReplaced(
            f"Node {self._spec.node_id} was cut off, and has lost its place in the job meanwhile. "
            f"Node {peer} refuses it: {reason} The job goes on without this process."
        )

    def settle(self) -> None:
        """Stop the detection: the job has ended, or this node is leaving it."""
        self._is_settled = True

    def check(self, now: float) -> NodeReplaced | PeerLost | None:
        """Return, once, the error that must end this node; None while it may continue."""
        if self._is_settled:
            return None
        error = self._replaced or self._alone(now)
        self._is_settled = error is not None
        return error

    def _alone(self, now: float) -> PeerLost | None:
        if self._spec.growth is not None and self._spec.node_id == HUB:
            return None  # further nodes may join it at any time
        limit = self._spec.peer_timeout
        met = [session for session in self._sessions.values() if session.peer is not None]
        lost = [session for session in met if not session.has_left]
        if limit is None or not lost or any(session.is_open for session in met):
            self._has_warned = False
            return None
        last = max(lost, key=lambda session: session.received_at)
        if (silent_s := now - last.received_at) < limit:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "node %d has no connected peer left, and ends in %.0f s unless one comes back "
                    "(DING_LITE_PEER_TIMEOUT)",
                    self._spec.node_id,
                    limit - silent_s,
                )
            return None
        return PeerLost(
            f"Node {self._spec.node_id} is connected to no other node any more: node "
            f"{last.peer_id} was the last one, has been silent for {silent_s:.0f} s, and has "
            f"not said good-bye. The limit is {limit:g} s; DING_LITE_PEER_TIMEOUT sets another "
            f"one, and 0 lets a node go on alone."
        )
