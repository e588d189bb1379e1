"""Detect that a node is cut off from its job for good, and make the error for its task."""

from __future__ import annotations

from collections.abc import Mapping

from ding_lite.errors import NodeReplaced, PeerLost
from ding_lite.parallel.link.session import Session
from ding_lite.parallel.network.topology import HUB, NodeSpec


class Isolation:
    """Detects that a node cannot reach its job; called with the lock of the links held.

    Args:
        spec: The node's place.
        sessions: The session with each peer.
    """

    def __init__(self, spec: NodeSpec, sessions: Mapping[int, Session]) -> None:
        self._spec = spec
        self._sessions = sessions
        self._refusal: tuple[int, str] | None = None
        self._is_settled = False

    def note_refused(self, peer: int, reason: str) -> None:
        """Note that this node has lost its place: a peer that was connected refuses it."""
        self._refusal = peer, reason

    def settle(self) -> None:
        """Stop looking: the job has ended, or this node is leaving it."""
        self._is_settled = True

    def look(self, now: float) -> NodeReplaced | PeerLost | None:
        """Return, once, the error that must end this node; None where it may go on."""
        if self._is_settled:
            return None
        error = self._replaced() or self._alone(now)
        self._is_settled = error is not None
        return error

    def _replaced(self) -> NodeReplaced | None:
        if self._refusal is None:
            return None
        peer, reason = self._refusal
        return NodeReplaced(
            f"Node {self._spec.node_id} was cut off, and has lost its place in the job meanwhile. "
            f"Node {peer} refuses it: {reason} The job goes on without this process."
        )

    def _alone(self, now: float) -> PeerLost | None:
        if self._spec.growth is not None and self._spec.node_id == HUB:
            return None  # further nodes may join it at any time
        limit = self._spec.peer_timeout
        met = [session for session in self._sessions.values() if session.peer is not None]
        lost = [session for session in met if not session.has_left]
        if limit is None or not lost or any(session.is_open for session in met):
            return None
        last = max(lost, key=lambda session: session.received_at)
        if (silent_s := now - last.received_at) < limit:
            return None
        return PeerLost(
            f"Node {self._spec.node_id} is connected to no other node any more: node "
            f"{last.peer_id} was the last one, has been silent for {silent_s:.0f} s, and has "
            f"not said good-bye. The limit is {limit:g} s; DING_LITE_PEER_TIMEOUT sets another "
            f"one, and 0 lets a node go on alone."
        )
