"""Follow the events of connections: report peers that come and go, and cut harmful connections."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.log import Throttle
from ding_lite.parallel.transport.base import Lane, Link, Sink
from ding_lite.parallel.transport.zeromq.connections import Connections, Source
from ding_lite.parallel.transport.zeromq.curve import CurveAuthenticator
from ding_lite.parallel.transport.zeromq.dealers import DOWN, HUNG_UP, NO_KEY, OPENED, UP, Dealers
from ding_lite.parallel.transport.zeromq.sockets import Socket, Sockets
from ding_lite.parallel.transport.zeromq.unauthenticated import UnauthenticatedConnections

_AT_ONCE = 64
_FOR_S = 0.02
"""Seconds for which connection events may delay messages."""
_SUSPICION_EVERY_S = 0.02
_NOW = int(zmq.NOBLOCK)


class ConnectionEvents:
    """Reads the monitors of the sockets, and checks connections at times.

    Args:
        sockets: The sockets of the transport.
        dealers: The sockets that dial, by link.
        connections: Bounds the bytes that ZeroMQ holds for this node, for tcp.
        sinks: The routers; the first one is told.
    """

    def __init__(
        self,
        sockets: Sockets,
        dealers: Mapping[Link, Dealers],
        connections: Connections,
        sinks: Sequence[Sink],
        throttle: Throttle,
    ) -> None:
        self._sockets = sockets
        self._dealers = dealers
        self._connections = connections
        self._sinks = sinks
        self._throttle = throttle
        self.monitors: dict[Socket, tuple[Link | None, Lane]] = {}
        """The monitors, each with the link of its socket; None for the listening socket."""
        self.unauthenticated: UnauthenticatedConnections | None = None
        self._num_suspicions = 0
        self._suspicions_at = 0.0

    def check(self) -> float:
        """Do what is due; return the seconds until there is more to do."""
        wait_s = self._check_suspicions() if self._num_suspicions else math.inf
        if self._connections.num_tcp or self.unauthenticated is not None:
            wait_s = min(wait_s, self._check_connections())
        return wait_s

    def answer(self, authenticator: CurveAuthenticator) -> None:
        for _ in range(_AT_ONCE):
            answer = self._sockets.take(authenticator.socket, lambda: [authenticator.answer()])
            if answer is None:
                return
            [refusal] = answer
            if refusal is not None:
                self._sinks[0].on_rejected(refusal)

    def read(self, monitor: Any) -> None:
        link, lane = self.monitors[monitor]
        if link is None:  # before reading of the events, which is slow
            self._check_unauthenticated(has_come=True)
        until = SYSTEM_CLOCK.now() + _FOR_S
        for _ in range(_AT_ONCE):
            if SYSTEM_CLOCK.now() > until:
                return
            happened = self._sockets.take(monitor, lambda: recv_monitor_message(monitor, _NOW))
            if happened is None:
                return
            event, value = happened["event"], happened["value"]
            if link is None:
                self._note_incoming_event(event, value)
            else:
                self._note_dialled_event(self._dealers[link], lane, event, value)

    def _note_incoming_event(self, event: zmq.Event, fd: int) -> None:
        if event in OPENED:
            if self.unauthenticated is None:
                self._connections.opened(fd)
            self._check_unauthenticated(has_come=True)
        elif event == DOWN:
            self._connections.closed(fd)
            self._num_suspicions = 2  # ZeroMQ reports it before its own sockets know
        elif event in (NO_KEY, HUNG_UP):  # a connection with an unknown key was counted already
            self._sinks[0].on_rejected("A connection was not of a node, or had a wrong key.")

    def _note_dialled_event(
        self, dealers: Dealers, lane: Lane, event: zmq.Event, value: int
    ) -> None:
        if event in OPENED:
            link = dealers.link
            self._connections.opened(value, Source(link, lane, link + lane, dealers.node_id))
            dealers.note_opened(lane, value)
        elif event == UP:
            if dealers.note_up(lane):
                self._sinks[0].on_up(dealers.link, dealers.node_id)
        elif event == DOWN:
            self._connections.closed(value)
            if dealers.note_down(lane):
                self._sinks[0].on_down(dealers.link)
        else:
            with self._sockets.using(*dealers.sockets.values()):
                reason = dealers.note_failure(lane, event, value)
            if dealers.doubt:
                self._throttle.every(
                    30.0,
                    logging.WARNING,
                    f"{dealers.node_id} {dealers.doubt}",
                    "node %d is not there yet: %s; this node goes on to dial",
                    dealers.node_id,
                    dealers.doubt,
                )
            if reason is not None:
                self._sinks[0].on_refused(dealers.node_id, reason)

    def _check_connections(self) -> float:
        """Cut connections that make ZeroMQ hold too much; return the seconds to the next check."""
        wait_s, reasons = self._connections.check(SYSTEM_CLOCK.now())
        for reason in reasons:
            self._sinks[0].on_rejected(reason)
        return min(wait_s, self._check_unauthenticated())

    def _check_unauthenticated(self, *, has_come: bool = False) -> float:
        """Cut connections that linger in the handshake or bring too much; return the wait."""
        if self.unauthenticated is None:
            return math.inf
        wait_s, proved, reasons = self.unauthenticated.check(has_come=has_come)
        for fd in proved:
            self._connections.opened(fd)
        if proved:
            reasons += self._connections.cut_surplus()
        for reason in reasons:
            self._sinks[0].on_rejected(reason)
        return wait_s

    def _check_suspicions(self) -> float:
        """Let the sink find broken links, at a limited rate; return when to call this again."""
        now = SYSTEM_CLOCK.now()
        if now < self._suspicions_at:
            return self._suspicions_at - now
        self._num_suspicions -= 1
        self._suspicions_at = now + _SUSPICION_EVERY_S
        for sink in self._sinks:
            sink.on_suspicion()
        return 0.0
