"""Supervise a job: start its nodes, watch them, restart them, end them, and report failures.

What is ugly here and why: one death is reported in three ways. A node that raises reports its error
over its own connection. A killed node is reported by its parent, the engine. If the engine or the
launcher is killed, a closed pipe is the only sign. These reports arrive in any order, and one
failure soon causes others (a lost peer, a timeout), so the first failure is determined only when
all nodes have ended. Signals may arrive at any line, so the handler only records them and wakes the
loop.

Everything here is one loop on the caller's thread. Every wait has a limit: a node or an engine that
does not end in time is killed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ding_lite.clock import Deadline
from ding_lite.errors import NodeFailed
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.supervise.failures import (
    Failure,
    crashed,
    raised,
    root_failure_error,
    stopped,
)
from ding_lite.parallel.supervise.job import (
    END_GRACE_S,
    Engine,
    EngineLost,
    NodeRecord,
    Nodes,
    Report,
)
from ding_lite.parallel.supervise.node_process import (
    RUNNING,
    STARTING,
    Ended,
    Entered,
    Exited,
    Failed,
    Finish,
    Returned,
    Stopped,
)
from ding_lite.runtime.interrupt import interruptible

EXIT_GRACE_S = 30.0
"""Seconds that a node may take to exit after `main` has ended; then it is killed. A process that
SIGSTOP has stopped has as long for its `main`, once all others have ended."""
ENGINE_GRACE_S = 5.0
"""Seconds beyond `END_GRACE_S` that the engine has to end the nodes before it is given up."""
_BACK_OFF_S = 0.1
_MAX_BACK_OFF_S = 5.0

logger = logging.getLogger(__name__)


def back_off(num_restarts: int) -> float:
    """Return the seconds before a node's next start: exponential, up to a limit."""
    # A bound on the exponent: a long job may restart a node a thousand times.
    return min(_BACK_OFF_S * 2.0 ** min(num_restarts, 32), _MAX_BACK_OFF_S)


def run_job(specs: Sequence[NodeSpec], engine: Engine, *, max_retries: int) -> list[Any]:
    """Run a job, and return the results of `main` by node or raise the error that has ended it."""
    with ExitStack() as stack:
        # Before the engine: a signal must never find nodes without a handler.
        interruption = stack.enter_context(interruptible(lambda _: engine.wake()))
        stack.callback(engine.close)
        engine.open()
        supervisor = Supervisor(specs, engine, max_retries)
        supervisor.start()
        while not supervisor.is_over:
            supervisor.turn(interruption.signum)
        failure = supervisor.failure
        if failure is not None:
            raise failure
        if not engine.forwards_signals or len(supervisor.results) < len(specs):
            interruption.raise_if_any()
        return supervisor.results


class Supervisor:
    """The launcher's view of a job: the state of its nodes, and decisions about them."""

    def __init__(self, specs: Sequence[NodeSpec], engine: Engine, max_retries: int) -> None:
        self._engine = engine
        self._max_retries = max_retries
        self._nodes = Nodes({spec.node_id: NodeRecord(spec) for spec in specs})
        self._failures: list[Failure] = []
        self._error: Exception | None = None
        """The error to raise when no failure of a node explains the end."""
        self._signal: int | None = None
        self._give_up_at: Deadline | None = None

    def start(self) -> None:
        for node in self._nodes.values():
            self._start(node)

    @property
    def is_over(self) -> bool:
        return all(node.is_over for node in self._nodes.values())

    @property
    def results(self) -> list[Any]:
        return [node.returned.result for node in self._nodes.values() if node.returned is not None]

    @property
    def failure(self) -> Exception | None:
        """The error to raise; None after success or an end by request."""
        if self._error is not None:
            return self._error
        failures = self._failures
        if self._signal is not None:
            failures = [failure for failure in failures if not failure.may_follow_request]
        return root_failure_error(failures) if failures else None

    def turn(self, signum: int | None) -> None:
        if signum is not None and self._signal is None:
            self._signal = signum
            self._engine.interrupt(int(signum))
            self._break_off_starts()
        try:
            reports = self._engine.wait(self._seconds_to_next_deadline())
        except EngineLost:
            self._lose_engine("has died")
            return
        # A report that a node runs may be the cause of the others' end.
        for node_id, report in sorted(reports, key=lambda item: not isinstance(item[1], Entered)):
            self._handle(self._nodes[node_id], report)
        self._limit_stops()
        self._check_deadlines()

    def _seconds_to_next_deadline(self) -> float | None:
        deadlines = [] if self._give_up_at is None else [self._give_up_at]
        for node in self._nodes.values():
            if node.start_at is not None:
                deadlines.append(node.start_at)
            elif node.has_deadline:
                deadlines.append(node.deadline)
        remaining = [d.remaining for d in deadlines if d.remaining is not None]
        return min(remaining, default=None)

    def _check_deadlines(self) -> None:
        if self.is_over:
            return
        if self._give_up_at is not None:
            if self._give_up_at.expired:
                self._lose_engine("did not end the nodes in time")
            return
        late = []
        for node in self._nodes.values():
            if node.start_at is not None and node.start_at.expired:
                self._start(node)
            elif not node.has_deadline or not node.deadline.expired:
                continue
            elif node.was_broken_off or node.has_ended_main:
                self._kill_lingering(node)
            elif node.must_continue:
                node.deadline = Deadline.after(None)
                self._engine.kill(node.spec.node_id)
                self._note(node, stopped(node.spec, node.stage, node.stopped_pid))
            else:
                late.append(node)
        if late and self._signal is None:
            ready = sorted(self._nodes.keys() - {node.spec.node_id for node in late})
            self._error = self._engine.startup_error(late, ready)
            self._end_all()

    def _handle(self, node: NodeRecord, report: Report) -> None:
        match report:
            case Entered(stage):
                node.stage = stage
                if stage == RUNNING:
                    self._spread_end()
            case Returned():
                node.returned = report
                node.deadline = Deadline.after(EXIT_GRACE_S)
                self._spread_end()
            case Failed():
                if not node.was_broken_off:  # else it has a shorter deadline already
                    node.deadline = Deadline.after(EXIT_GRACE_S)
                self._note(node, raised(node.spec, report))
            case Stopped(pid):
                node.stopped_pid, node.must_continue = pid, False
            case Exited():
                node.stopped_pid, node.must_continue = None, False
                if node.returned is None and node.failure is None:
                    self._note(node, crashed(node.spec, node.stage, report))
                # The `close` of its peers need not wait for it any more.
                ended = Ended(node.spec.node_id, node.spec.incarnation)
                for near in self._nodes.peers_of(node):
                    if near.stage != STARTING:  # it has its work, and reads this once connected
                        self._engine.send(near.spec.node_id, ended)
                node.is_over = not self._restart(node)

    def _limit_stops(self) -> None:
        """Set a deadline for stopped processes if a job that is ending waits for them alone."""
        left = [node for node in self._nodes.values() if not (node.is_over or node.has_ended_main)]
        is_ending = self._signal is not None or bool(self.results)
        if not is_ending or any(node.stopped_pid is None for node in left):
            return
        for node in left:
            if not node.has_deadline:
                node.must_continue, node.deadline = True, Deadline.after(EXIT_GRACE_S)
                logger.warning(
                    "node %d (process %d) is stopped by SIGSTOP, and the job waits for it alone; "
                    "SIGCONT continues it, else it is killed in %.0f s",
                    node.spec.node_id,
                    node.stopped_pid,
                    EXIT_GRACE_S,
                )

    def _break_off_starts(self) -> None:
        """Set a deadline for nodes that do not run `main` yet.

        The signal interrupts them at any line, even where its exception is swallowed.
        """
        self._cancel_restarts()
        for node in self._nodes.values():
            if not node.is_over and node.stage != RUNNING and not node.has_ended_main:
                node.was_broken_off = True
                node.deadline = Deadline.after(END_GRACE_S)

    def _cancel_restarts(self) -> None:
        for node in self._nodes.values():
            if node.start_at is not None:
                node.start_at, node.is_over = None, True

    # -- failures ------------------------------------------------------------------------

    def _note(self, node: NodeRecord, failure: Failure) -> None:
        if node.failure is None:
            node.failure = failure
        if not self._may_restart(node) and not node.was_broken_off:
            self._failures.append(failure)
            if self._signal is None or not failure.may_follow_request:
                self._end_all()

    def _may_restart(self, node: NodeRecord) -> bool:
        return (
            self._give_up_at is None
            and self._signal is None
            and node.failure is not None
            and node.failure.may_pass
            and node.returned is None
            and node.num_restarts < self._max_retries
        )

    def _restart(self, node: NodeRecord) -> bool:
        failure = node.failure
        if failure is None or not self._may_restart(node):
            return False
        if self._nodes.has_returned_peer(node):
            self._give_up_on(node)
            return False
        delay = back_off(node.num_restarts)
        node.num_restarts += 1
        logger.warning(
            "node %d %s; restart %d of %d in %.1f s%s",
            node.spec.node_id,
            failure.what,
            node.num_restarts,
            self._max_retries,
            delay,
            f"\n{failure.traceback}" if failure.traceback else "",
        )
        node.spec = replace(node.spec, incarnation=node.spec.incarnation + 1)
        node.failure, node.stage, node.was_told_to_finish = None, STARTING, False
        node.start_at = Deadline.after(delay)
        return True

    def _spread_end(self) -> None:
        """End nodes that the end of the job on other nodes cannot reach."""
        for node in self._nodes.values():
            if node.is_over or node.returned is not None:
                continue
            if node.stage == RUNNING:
                if self._nodes.is_cut_off(node) and not node.was_told_to_finish:
                    node.was_told_to_finish = True
                    self._engine.send(node.spec.node_id, Finish())
            elif self._nodes.waits_for_lost_peer(node) or (
                node.num_restarts > 0 and self._nodes.has_returned_peer(node)
            ):
                self._give_up_on(node)

    def _give_up_on(self, node: NodeRecord) -> None:
        """End the job without a restarting node, since its peers have ended."""
        logger.warning(
            "node %d was not restarted to the end: the job was ending; its result is None",
            node.spec.node_id,
        )
        node.returned, node.was_given_up = Returned(None), True
        if node.start_at is not None:
            node.start_at, node.is_over = None, True
        else:
            self._engine.kill(node.spec.node_id)
        self._spread_end()

    def _start(self, node: NodeRecord) -> None:
        node.start_at = None
        node.deadline = Deadline.after(node.spec.startup_timeout)
        self._engine.start(node)

    def _kill_lingering(self, node: NodeRecord) -> None:
        if not node.was_broken_off:
            logger.warning(
                "node %d has not ended %.0f s after its `main`, and was killed; a non-daemon "
                "thread keeps it alive, or it hangs while it closes resources",
                node.spec.node_id,
                EXIT_GRACE_S,
            )
        node.deadline = Deadline.after(None)
        self._engine.kill(node.spec.node_id)

    def _end_all(self) -> None:
        if self._give_up_at is None:
            self._give_up_at = Deadline.after(END_GRACE_S + ENGINE_GRACE_S)
            self._engine.end(END_GRACE_S)
        self._cancel_restarts()

    def _lose_engine(self, how: str) -> None:
        """End the job without the engine, which alone knows the state of the nodes."""
        node_id = next(node.spec.node_id for node in self._nodes.values() if not node.is_over)
        if self._error is None and not self._failures:
            self._error = NodeFailed(
                f"{self._engine.name} {how}, so the nodes were killed. Its last output, if any, is "
                f"on standard error.",
                node_id=node_id,
            )
        for node in self._nodes.values():
            node.is_over = True
