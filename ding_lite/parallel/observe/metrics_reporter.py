"""Write the metrics of a node once a second.

The reporter runs on the thread that reads messages, between two of them. It looks at the task from
outside: at the ctx of the pipeline and at the frame of the task's thread. So the task itself counts
nothing and is not slowed. A thread that waits in this package is in `clock.py`, which all waits
call, or reads messages meanwhile.
"""

from __future__ import annotations

import gc
import logging
import numbers
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from ding_lite import clock as clock_module
from ding_lite.clock import Clock
from ding_lite.log import Throttle
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.network.topology import FIRST_TIMESTAMP_INCARNATION, NodeSpec
from ding_lite.parallel.observe.metrics import Counts, MetricsFile, NodeMetrics, PeerMetrics, State
from ding_lite.parallel.transport.zeromq import reactor
from ding_lite.runtime.messaging.inbox import Inbox, Progress, ReportsProgress
from ding_lite.runtime.messaging.streams import Streams

logger = logging.getLogger(__name__)

PERIOD_S = 0.9
"""The least seconds between two records. There is a tick every second even when idle."""
_WAITS = (clock_module.__name__, reactor.__name__)
_OURS = "ding_lite"
_WORTH_SHOWING = ("ding_lite.middleware", "ding_lite.testing")
"""Modules of this package with lines worth showing; for others the caller's line is shown."""


class Reporter:
    """Writes a node's metrics once a second."""

    def __init__(
        self,
        spec: NodeSpec,
        links: Links,
        inbox: Inbox,
        streams: Streams,
        count_calls: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._spec = spec
        self._links = links
        self._inbox = inbox
        self._streams = streams
        self._count_calls = count_calls
        self._clock = clock
        self._throttle = Throttle(logger, clock)
        self._began = clock.now()
        self._before: tuple[float, Counts] | None = None
        self._last_step: int | None = None
        self._last_env_step: int | float | None = None
        self._file: MetricsFile | None = None
        self._due = float("inf")
        if spec.directory is not None:
            try:
                self._file = MetricsFile(Path(spec.directory), spec.node_id)
                self._due = self._began
            except OSError as error:
                self._warn_once(error)

    def turn(self) -> None:
        """Write a record, unless the last one is less than a second old."""
        now = self._clock.now()
        if now >= self._due:
            self._due = now + PERIOD_S
            self._write(self.sample(now))

    def close(self, state: State) -> None:
        """Write the last record; only after the last tick."""
        if self._file is not None:
            self._write(self.sample(self._clock.now(), state))
            self._file.close()
            self._file = None

    def sample(self, now: float, state: State | None = None) -> NodeMetrics:
        with self._links.lock:
            sessions = list(self._links.sessions.values())
            traffic = {
                "events_out": sum(s.events.num_sent for s in sessions),
                "events_in": sum(s.num_events_in for s in sessions),
                "ctx_out": sum(s.state.count for s in sessions),
                "ctx_in": sum(s.num_states_in for s in sessions),
            }
            peers = tuple(
                PeerMetrics(
                    node_id=session.peer_id,
                    labels=() if session.peer is None else tuple(sorted(session.peer.labels)),
                    is_connected=session.is_open,
                    has_left=session.has_left,
                    unacknowledged=session.events.num_unacknowledged,
                    heard_s=None if session.peer is None else now - session.received_at,
                    ctx_s=None if session.state_at is None else now - session.state_at,
                )
                for session in sessions
            )
        progress = self._progress()
        self._remember(progress)
        total = Counts(
            **traffic,
            total_step=self._last_step,
            env_step=self._last_env_step,
            items_out=self._streams.num_sent,
        )
        before, self._before = self._before, (now, total)
        rate = Counts()
        if before is not None and now > before[0]:
            rate = total.rate(before[1], now - before[0])
        thread = threading.main_thread().ident if progress is None else progress.thread
        where, waits = where_is(thread or 0)
        spec, restarts = self._spec, self._spec.incarnation - 1
        return NodeMetrics(
            node_id=spec.node_id,
            num_nodes=spec.num_nodes,
            labels=tuple(sorted(spec.labels)),
            pid=os.getpid(),
            program=spec.program or Path(*sys.argv[:1]).name,
            addresses=tuple(filter(None, [self._links.address, *spec.dials.values()])),
            restarts=restarts if restarts < FIRST_TIMESTAMP_INCARNATION - 1 else None,
            began=self._began,
            at=now,
            state=state or self._state(progress, waits),
            where=where,
            total=total,
            per_second=rate,
            inbox=self._inbox.num_waiting + (0 if progress is None else progress.num_waiting),
            items=self._streams.num_waiting,
            calls=self._count_calls(),
            rejected=self._links.dropped.count,
            peers=peers,
        )

    def _progress(self) -> Progress | None:
        for receiver in reversed(self._inbox.receivers):
            if isinstance(receiver, ReportsProgress):
                return receiver.progress()
        return None

    def _remember(self, progress: Progress | None) -> None:
        """Keep the newest counts, as they may be unset in the middle of a step or after it."""
        if progress is None:
            return
        self._last_step = progress.total_step
        if isinstance(progress.env_step, numbers.Integral):
            self._last_env_step = int(progress.env_step)
        elif isinstance(progress.env_step, numbers.Real):
            self._last_env_step = float(progress.env_step)

    def _state(self, progress: Progress | None, waits: bool) -> State:
        if any(session.peer is None for session in self._links.sessions.values()):
            return "starting"
        if progress is None:
            return "no task"
        if progress.finish:
            return "finishing"
        return "waiting" if waits else "running"

    def _write(self, metrics: NodeMetrics) -> None:
        try:
            if self._file is not None:
                self._file.write(metrics)
        except OSError as error:  # a full disk must not stop the node
            self._warn_once(error)

    def _warn_once(self, error: OSError) -> None:
        self._throttle.once(
            logging.WARNING,
            "metrics",
            "`ding-lite top` will not see this node as it is: its metrics cannot be written (%s)",
            error,
        )


def where_is(thread: int) -> tuple[str, bool]:
    """Return the line of the program, or else of our middleware, and whether the thread waits."""
    frame = _frames().get(thread)
    waits = False
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        waits = waits or module in _WAITS
        if _is_the_users(module, frame.f_code.co_filename):
            code = frame.f_code
            name = code.co_name.strip("<>")
            return f"{Path(code.co_filename).name}:{frame.f_lineno} {name}", waits
        frame = frame.f_back
    return "", waits


def _frames() -> dict[int, FrameType]:
    """Return the frame of each thread.

    If a garbage collection begins meanwhile, Python 3.11.8 and older may block for ever, with all
    threads: https://github.com/python/cpython/issues/106883
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if was_enabled:
            gc.enable()


def _is_the_users(module: str, file: str) -> bool:
    first = module.partition(".")[0]
    if first == _OURS:
        return module.startswith(_WORTH_SHOWING)
    is_library = first in sys.stdlib_module_names or "site-packages" in file
    return not (is_library or file.startswith("<"))
