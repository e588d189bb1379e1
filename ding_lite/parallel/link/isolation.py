"""When a node is cut off from its job for good, and the error that its task ends with then."""

from __future__ import annotations

from collections.abc import Mapping

from ding_lite.errors import NodeReplaced, PeerLost
from ding_lite.parallel.link.session import Session
from ding_lite.parallel.network.topology import HUB, NodeSpec


class Isolation:
    """Tells whether a node can still reach its job; all of it is called with the links' lock held.

    Args:
        spec: The node's place.
        sessions: What it and each of its peers owe each other.
    """

    def __init__(self, spec: NodeSpec, sessions: Mapping[int, Session]) -> None:
        self._spec = spec
        self._sessions = sessions
        self._refusal: tuple[int, str] | None = None
        self._is_settled = False

    def note_refused(self, peer: int, reason: str) -> None:
        """Note that this node has lost its place: a peer that had let it in refuses it."""
        self._refusal = peer, reason

    def settle(self) -> None:
        """Look no more: the job has ended, or this node is leaving it."""
        self._is_settled = True

    def look(self, now: float) -> NodeReplaced | PeerLost | None:
        """Return why this node must end, once; None where it may go on."""
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
        last = max(lost, key=lambda session: session.heard_at)
        if (silent_s := now - last.heard_at) < limit:
            return None
        return PeerLost(
            f"Node {self._spec.node_id} is connected to no other node any more: node "
            f"{last.peer_id} was the last one, was heard of {silent_s:.0f} s ago, and has not said "
            f"good-bye. The limit is {limit:g} s; DING_LITE_PEER_TIMEOUT sets another one, and 0 "
            f"lets a node go on alone."
        )
