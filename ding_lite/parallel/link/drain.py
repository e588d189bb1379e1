"""Leaving a job: a node stays until its peers have what it owes them.

It owes a peer the events that the peer has not acknowledged, and a good-bye that the peer answers.
A peer that is heard of gets all of it sooner or later, however slow the link is. A link that is
down may come back, so a lost peer is waited for as well, but not for long. All of it is called with
the lock of the node's links held.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping

from ding_lite.clock import Clock
from ding_lite.parallel.link.session import Session
from ding_lite.parallel.network.topology import NodeSpec

FAREWELL_TIMEOUT_S = 2.0
"""Seconds to wait for a peer that is owed no more than a good-bye to answer it; for a lost one,
since it was heard of."""
ACK_TIMEOUT_S = 1.0
"""Seconds to wait for a peer that has said good-bye to have heard this node's as well: what is
under way when a connection is closed may be lost."""
FLUSH_TIMEOUT_S = 5.0
"""Seconds to wait for the newest ctx and the answers to calls, which are no events, to arrive."""
MOST_LINGERS = 10
"""However slow its links are, a node has left after this many times its `linger`."""
_TOLD_AFTER_S = 1.0

logger = logging.getLogger(__name__)


class Drain:
    """Decides how long a node that leaves waits, and for which peers.

    Args:
        spec: The node's place.
        sessions: What it and each of its peers owe each other.
        clock: What the waits are measured by.
    """

    def __init__(self, spec: NodeSpec, sessions: Mapping[int, Session], clock: Clock) -> None:
        self._spec = spec
        self._sessions = sessions
        self._clock = clock
        self._ended: dict[int, int] = {}
        self._began_at: float | None = None
        self._says_good_bye = False
        self._linger = spec.linger
        self._owes: Callable[[], bool] = lambda: False
        self._states: dict[int, tuple[object, float]] = {}
        self.is_cancelled = False
        """Whether no peer is waited for any more."""
        self._was_told = False

    @property
    def is_under_way(self) -> bool:
        """Whether the node is leaving."""
        return self._began_at is not None

    def begin(self, *, good_bye: bool, linger: float, owes: Callable[[], bool]) -> None:
        """Begin to leave.

        Args:
            good_bye: Whether to take leave; else only connected peers are waited for.
            linger: Seconds to wait for a peer since it was last heard of.
            owes: Tells whether there is more to be sent than the sessions know.
        """
        self._began_at = self._clock.now()
        self._says_good_bye, self._linger, self._owes = good_bye, linger, owes

    def cancel(self) -> None:
        """Wait for no peer any more."""
        self.is_cancelled = True

    def note_ended(self, peer: int, incarnation: int) -> None:
        """Note that the process of a peer has ended: it takes nothing any more.

        Args:
            peer: The peer.
            incarnation: Its last incarnation that has ended; a later one may be there already.
        """
        self._ended[peer] = max(incarnation, self._ended.get(peer, 0))

    @property
    def ready(self) -> Iterator[int]:
        """The connected peers that are to be told good-bye."""
        if self._says_good_bye:
            for peer, session in self._sessions.items():
                if session.is_open and self._is_ready(session):
                    yield peer

    def rest_s(self) -> float:
        """Return for how many seconds more this node may wait; 0 where nothing is left to do."""
        if self._began_at is None or self.is_cancelled:
            return 0.0
        now = self._clock.now()
        until = max(map(self._until, self._sessions.values()), default=-math.inf)
        until = min(until, self._began_at + MOST_LINGERS * self._linger)
        if until > now > self._began_at + _TOLD_AFTER_S and not self._was_told:
            self._was_told = True
            for peer, num_events in self._missing().items():
                logger.warning(
                    "node %d is leaving and waits for node %d to take %s, at most until it has "
                    "not been heard of for %g s (DING_LITE_LINGER); Ctrl-C ends the wait",
                    self._spec.node_id,
                    peer,
                    _events(num_events),
                    self._linger,
                )
        return max(0.0, until - now)

    def report(self) -> None:
        """Say which peers this node has left without all that it owed them."""
        for peer, num_events in self._missing().items():
            logger.warning(
                "node %d has left, and node %d misses %s: %s",
                self._spec.node_id,
                peer,
                _events(num_events),
                self._why(peer),
            )

    def _missing(self) -> dict[int, int]:
        owed = {peer: session.num_owed for peer, session in self._sessions.items()}
        return {peer: num for peer, num in owed.items() if num and self._is_missed(peer)}

    def _is_missed(self, peer: int) -> bool:
        session = self._sessions[peer]
        return session.peer is not None and not session.has_left

    def _why(self, peer: int) -> str:
        if self._has_ended(self._sessions[peer]):
            return "its process has ended."
        if self.is_cancelled:
            return "the wait was interrupted."
        heard_s = self._clock.now() - self._sessions[peer].heard_at
        return f"it was heard of {heard_s:.0f} s ago, and did not take them in time."

    def _has_ended(self, session: Session) -> bool:
        incarnation = self._ended.get(session.peer_id)
        return (
            incarnation is not None
            and session.peer is not None
            and session.peer.incarnation <= incarnation
        )

    def _is_ready(self, session: Session) -> bool:
        """Tell whether a peer has all that it is owed, but for the good-bye."""
        if session.num_owed:
            return False
        is_late = self._clock.now() >= (self._began_at or 0.0) + FLUSH_TIMEOUT_S
        return is_late or (session.is_flushed and not self._owes())

    def _until(self, session: Session) -> float:
        """Return up to when a peer is waited for."""
        began_at, good_bye = self._began_at or 0.0, self._says_good_bye
        linger = self._linger
        if session.has_left:
            is_over = not (good_bye and session.awaits_ack)
            return -math.inf if is_over else self._since(session, "left") + ACK_TIMEOUT_S
        if session.peer is None:
            return -math.inf
        if not session.is_open:
            self._since(session, "lost")
            is_over = not good_bye or self._has_ended(session)
            limit_s = linger if session.num_owed else min(linger, FAREWELL_TIMEOUT_S)
            return -math.inf if is_over else session.heard_at + limit_s
        if self._is_ready(session):
            is_over = not good_bye
            return -math.inf if is_over else self._since(session, "ready") + FAREWELL_TIMEOUT_S
        if session.num_owed and good_bye:
            return session.heard_at + linger
        return began_at + FLUSH_TIMEOUT_S

    def _since(self, session: Session, state: str) -> float:
        """Return when a peer has come to be in a state."""
        if self._states.get(session.peer_id, ("", 0.0))[0] != state:
            self._states[session.peer_id] = state, self._clock.now()
        return self._states[session.peer_id][1]


def _events(number: int) -> str:
    return f"{number} event{'s' if number > 1 else ''}"
