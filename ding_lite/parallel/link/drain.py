"""Decide how long a node that leaves a job waits for its peers.

A peer must receive the events that it has not acknowledged, and a good-bye, which it answers. Over
a working link it receives both sooner or later, however slow the link is. A broken link may come
back, so a node also waits for a lost peer, but not for long. All methods are called with the lock
of the node's links held.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping

from ding_lite.clock import Clock
from ding_lite.parallel.link.session import Session
from ding_lite.parallel.network.topology import NodeSpec

FAREWELL_TIMEOUT_S = 2.0
"""Seconds to wait for the answer to a good-bye; for a lost peer, since its last message."""
ACK_TIMEOUT_S = 1.0
"""Seconds to wait until a peer that has said good-bye has this node's good-bye as well: messages
under way may be lost when a connection is closed."""
FLUSH_TIMEOUT_S = 5.0
"""Seconds to wait for the newest ctx values and answers to calls, which are no events."""
MAX_LINGERS = 10
"""The longest wait of a leaving node, in multiples of its `linger`, however slow its links are."""
_WARN_AFTER_S = 1.0

logger = logging.getLogger(__name__)


class Drain:
    """The wait of a leaving node, from now on, until its peers have received everything.

    `ended` has the last incarnation of each peer with an ended process, which receives no more.
    `has_more` tells of messages that the sessions do not hold yet.
    """

    def __init__(
        self,
        spec: NodeSpec,
        sessions: Mapping[int, Session],
        ended: Mapping[int, int],
        clock: Clock,
        *,
        good_bye: bool,
        linger: float,
        has_more: Callable[[], bool],
    ) -> None:
        self._spec = spec
        self._sessions = sessions
        self._ended = ended
        self._clock = clock
        self._began_at = clock.now()
        self._sends_good_bye = good_bye
        self._linger = linger
        self._has_more_to_send = has_more
        self._states: dict[int, tuple[str, float]] = {}
        self._has_warned = False

    @property
    def ready(self) -> Iterator[int]:
        """The connected peers that should get a good-bye now."""
        if self._sends_good_bye:
            for peer, session in self._sessions.items():
                if session.is_open and self._is_ready(session):
                    yield peer

    def ends_at(self) -> float:
        """Return the time until which this node may wait; a time in the past if all is done."""
        now = self._clock.now()
        until = max(map(self._until, self._sessions.values()), default=-math.inf)
        until = min(until, self._began_at + MAX_LINGERS * self._linger)
        if until > now > self._began_at + _WARN_AFTER_S and not self._has_warned:
            self._has_warned = True
            until_free = ", or has lost its place" if self._spec.growth else ""
            for peer, num_events in self._missing().items():
                logger.warning(
                    "node %d is leaving and waits for node %d to take %s, at most until it has "
                    "been silent for %g s (DING_LITE_LINGER)%s; Ctrl-C ends the wait",
                    self._spec.node_id,
                    peer,
                    _events(num_events),
                    self._linger,
                    until_free,
                )
        return until

    def report(self, *, was_cancelled: bool) -> None:
        for peer, num_events in self._missing().items():
            logger.warning(
                "node %d has left, and node %d misses %s: %s",
                self._spec.node_id,
                peer,
                _events(num_events),
                self._why(peer, was_cancelled),
            )

    def _missing(self) -> dict[int, int]:
        return {
            peer: session.events.num_unacknowledged
            for peer, session in self._sessions.items()
            if session.events.num_unacknowledged and session.peer and not session.has_left
        }

    def _why(self, peer: int, was_cancelled: bool) -> str:
        if self._has_ended(self._sessions[peer]):
            return "its process has ended."
        if was_cancelled:
            return "the wait was interrupted."
        silent_s = self._clock.now() - self._sessions[peer].received_at
        return f"its last message came {silent_s:.0f} s ago, and it did not take them in time."

    def _has_ended(self, session: Session) -> bool:
        incarnation = self._ended.get(session.peer_id)
        return (
            incarnation is not None
            and session.peer is not None
            and session.peer.incarnation <= incarnation
        )

    def _is_ready(self, session: Session) -> bool:
        if session.events.num_unacknowledged:
            return False
        is_late = self._clock.now() >= self._began_at + FLUSH_TIMEOUT_S
        return is_late or (session.is_flushed and not self._has_more_to_send())

    def _until(self, session: Session) -> float:
        """Return the time until which to wait for a peer; a time in the past if it has all."""
        done, began_at = -math.inf, self._began_at
        if session.peer is None:
            return done
        if not self._sends_good_bye:
            is_flushing = session.is_open and not self._is_ready(session)
            return began_at + FLUSH_TIMEOUT_S if is_flushing else done
        if session.has_left:
            return self._since(session, "left") + ACK_TIMEOUT_S if session.awaits_ack else done
        owes_events = session.events.num_unacknowledged > 0
        if not session.is_open:
            self._since(session, "lost")
            limit_s = self._linger if owes_events else min(self._linger, FAREWELL_TIMEOUT_S)
            return done if self._has_ended(session) else session.received_at + limit_s
        if self._is_ready(session):
            return self._since(session, "ready") + FAREWELL_TIMEOUT_S
        return session.received_at + self._linger if owes_events else began_at + FLUSH_TIMEOUT_S

    def _since(self, session: Session, state: str) -> float:
        if self._states.get(session.peer_id, ("", 0.0))[0] != state:
            self._states[session.peer_id] = state, self._clock.now()
        return self._states[session.peer_id][1]


def _events(number: int) -> str:
    return f"{number} event{'s' if number > 1 else ''}"
