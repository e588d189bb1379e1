"""Supervise a job: start its nodes, watch them, restart them, end them, and report failures.

What is ugly here and why: one death is reported along three paths. A node that raises reports
its error over its own connection; a node that is killed is reported by its parent, the fork
server; and when the fork server or the launcher is killed, a pipe that closes is the only sign.
These reports arrive in any order, and one failure soon causes others (a lost peer, a timeout), so
the first failure is determined only when all nodes have ended. Signals are ugly as well: they
may arrive at any line. The handler only records them and wakes the loop.

Everything here is one loop on the caller's thread. Every wait has a limit: a node that does not
end in time is killed, and so is the fork server.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing import spawn
from multiprocessing.connection import Connection, wait
from typing import Any

from ding_lite.clock import Deadline
from ding_lite.errors import ConfigError, NodeFailed
from ding_lite.parallel.memory.segments import remove_left_over
from ding_lite.parallel.supervise.failures import (
    Failure,
    crashed,
    explain_unpicklable,
    raised,
    root_failure_error,
    startup_timeout_error,
)
from ding_lite.parallel.supervise.fork_server import END_GRACE_S
from ding_lite.parallel.supervise.fork_server_client import (
    FORK_SERVER_GRACE_S,
    ForkServerClient,
    kill_groups,
)
from ding_lite.parallel.supervise.job import Job, NodeRecord, Nodes
from ding_lite.parallel.supervise.node_process import (
    IMPORTING,
    RUNNING,
    STARTING,
    Ended,
    Entered,
    Failed,
    Finish,
    Returned,
    Work,
)
from ding_lite.runtime.interrupt import interruptible

EXIT_GRACE_S = 30.0
"""Seconds that a node may take to exit after `main` has ended; then it is killed."""
_BACK_OFF_S = 0.1
_MAX_BACK_OFF_S = 5.0

logger = logging.getLogger(__name__)


def back_off(num_restarts: int) -> float:
    """Return the seconds before a node's next start: exponential, up to a limit."""
    # A bound on the power: a long job may restart a node a thousand times.
    return min(_BACK_OFF_S * 2.0 ** min(num_restarts, 32), _MAX_BACK_OFF_S)


def run_job(job: Job) -> list[Any]:
    """Run a job and return the results of `main` by node.

    Raises:
        NodeFailed: A node raised or was killed; its error is the cause.
        DeadlineExceeded: A node was not connected in time.
        ConfigError: `main` or an argument cannot be passed to another process.
        KeyboardInterrupt: The launcher got SIGINT, and the nodes have ended in order.
        SystemExit: The same after SIGTERM.
    """
    with ExitStack() as stack:
        stack.callback(job.directory.remove)
        supervisor = _Supervisor(job)
        # Before the fork server: a signal must never find nodes without a handler.
        interruption = stack.enter_context(interruptible(lambda _: supervisor.wake()))
        stack.callback(supervisor.close)
        supervisor.start()
        while not supervisor.is_over:
            supervisor.turn(interruption.signum)
        failure = supervisor.failure
        if failure is not None:
            raise failure
        if not supervisor.has_all_results:
            interruption.raise_if_any()
        return supervisor.results


class _Supervisor:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._timeout = job.specs[0].startup_timeout
        self._nodes = Nodes()
        self._failures: list[Failure] = []
        self._error: Exception | None = None
        """The error to raise when no failure of a node explains the end."""
        self._signal: int | None = None
        self._give_up_at: Deadline | None = None
        self._preparation: dict[str, Any] = {}
        self._fork_server = ForkServerClient()
        self._wake_r, self._wake_w = os.pipe()
        self._wake_lock = threading.Lock()
        self._is_closed = False

    # -- start and end -------------------------------------------------------------------

    def start(self) -> None:
        """Start the fork server and request all nodes."""
        self._preparation = _preparation()
        self._fork_server.start(
            self._job.directory,
            preload=self._job.preload,
            sys_path=self._preparation["sys_path"],
        )
        for node in self._job.specs:
            self._nodes[node.node_id] = NodeRecord(node, Deadline.after(self._timeout))
            self._start_node(self._nodes[node.node_id])

    def close(self) -> None:
        """Kill all remaining processes and wait for them; safe at any time."""
        if not self._fork_server.close():
            self._kill_orphans()
        for node in self._nodes.values():
            if node.connection is not None:
                node.connection.close()
        with self._wake_lock:
            self._is_closed = True
            for fd in (self._wake_r, self._wake_w):
                os.close(fd)

    def wake(self) -> None:
        """Make `turn` return soon; safe from any thread, and at any time."""
        with self._wake_lock:
            if not self._is_closed:
                os.write(self._wake_w, b"w")

    def _kill_orphans(self) -> None:
        """Kill the nodes of a killed fork server, and remove their shared memory."""
        nodes = [node for node in self._nodes.values() if not node.is_over]
        kill_groups([node.pid for node in nodes if node.pid is not None])
        remove_left_over()

    # -- the outcome ---------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether every node has ended for good."""
        return all(node.is_over for node in self._nodes.values())

    @property
    def has_all_results(self) -> bool:
        """Whether `main` has returned on every node."""
        return all(node.returned is not None for node in self._nodes.values())

    @property
    def results(self) -> list[Any]:
        """The results of `main`, by node."""
        return [node.returned.result for node in self._nodes.values() if node.returned is not None]

    @property
    def failure(self) -> Exception | None:
        """The error to raise; None after success or an end by request."""
        if self._error is not None:
            return self._error
        failures = self._failures
        if self._signal is not None:
            failures = [failure for failure in failures if not failure.was_asked_for]
        return root_failure_error(failures) if failures else None

    # -- the loop ------------------------------------------------------------------------

    def turn(self, signum: int | None) -> None:
        """Wait for the next message, signal or deadline, and handle it.

        Args:
            signum: The signal that ends the job, if one was received.
        """
        if signum is not None and self._signal is None:
            self._signal = signum
            self._fork_server.send(signal=int(signum))
            self._break_off_starts()
        by_connection = {n.connection: n for n in self._nodes.values() if n.connection is not None}
        sources: list[Any] = [self._wake_r, self._fork_server.fileno(), *by_connection]
        ready = wait(sources, self._seconds_to_next_deadline())

        if self._wake_r in ready:
            os.read(self._wake_r, 64)
        for source in ready:
            if isinstance(source, Connection):
                self._read_messages(by_connection[source])
        if self._fork_server.fileno() in ready:
            self._read_fork_server()
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
                self._lose_fork_server("did not end the nodes in time")
            return
        late = []
        for node in self._nodes.values():
            if node.start_at is not None and node.start_at.expired:
                self._start_node(node)
            elif not node.has_deadline or not node.deadline.expired:
                continue
            elif node.was_broken_off:
                node.deadline = Deadline.after(None)
                self._kill(node)
            elif node.has_ended_main:
                self._kill_lingering(node)
            else:
                late.append(node)
        if late and self._signal is None and self._timeout is not None:
            ready = set(self._nodes) - {node.spec.node_id for node in late}
            stages = [(node.spec.node_id, node.stage) for node in late]
            self._error = startup_timeout_error(stages, sorted(ready), self._timeout)
            self._end_all()

    def _read_messages(self, node: NodeRecord) -> None:
        connection = node.connection
        try:
            while connection is not None and connection.poll():
                self._handle_message(node, connection.recv(), connection)
        except (EOFError, OSError):
            if connection is not None:
                connection.close()
            node.connection = None  # it has ended; the fork server will report how

    def _handle_message(
        self, node: NodeRecord, message: object, connection: Connection[Any, Any]
    ) -> None:
        match message:
            case Entered(stage):
                node.stage = stage
                if stage == IMPORTING:
                    self._send_work(node, connection)
                elif stage == RUNNING:
                    self._spread_end()
            case Returned():
                node.returned = message
                node.deadline = Deadline.after(EXIT_GRACE_S)
                with suppress(OSError):
                    connection.send(None)
                self._spread_end()
            case Failed():
                try:
                    error = connection.recv()
                except (EOFError, OSError):
                    raise
                except Exception:  # noqa: BLE001 - an error that cannot be unpickled
                    error = None
                if not node.was_broken_off:  # else it has a shorter deadline already
                    node.deadline = Deadline.after(EXIT_GRACE_S)
                self._note(node, raised(node.spec, message, error))

    def _send_work(self, node: NodeRecord, connection: Connection[Any, Any]) -> None:
        job = self._job
        try:
            connection.send(Work(node.spec, job.make_router, job.main, job.args, job.kwargs))
        except OSError:
            pass  # the node has died; its earlier messages are still to be read
        except Exception as error:
            parts = {"`main`": job.main, "the router's factory": job.make_router}
            parts |= {f"argument {n} of `main`": arg for n, arg in enumerate(job.args, 1)}
            parts |= {f"argument `{n}` of `main`": arg for n, arg in job.kwargs.items()}
            raise ConfigError(explain_unpicklable(parts, error)) from error

    def _read_fork_server(self) -> None:
        message = self._fork_server.receive()
        match message:
            case None:
                self._lose_fork_server("has died")
            case {"started": int(node_id), "pid": int(pid)}:
                node = self._nodes[node_id]
                node.pid = pid
                if node.returned is not None:  # given up before it had started
                    self._kill(node)
            case {"exited": int(node_id), "code": int(code)}:
                self._on_exit(self._nodes[node_id], code)

    def _on_exit(self, node: NodeRecord, code: int) -> None:
        self._read_messages(node)  # its last messages may still be under way
        if node.connection is not None:
            node.connection.close()
            node.connection = None
        if node.returned is None and node.failure is None:
            self._note(node, crashed(node.spec, node.stage, code, node.pid))
        node.pid = None  # the kernel may reuse it from now on
        self._report_exit(node)
        if not self._restart(node):
            node.is_over = True

    def _break_off_starts(self) -> None:
        """Set a deadline for nodes that do not run `main` yet.

        The signal reaches them at any line, also where its exception is swallowed.
        """
        for node in self._nodes.values():
            if node.start_at is not None:
                node.start_at, node.is_over = None, True
            elif node.stage != RUNNING and not node.has_ended_main:
                node.was_broken_off = True
                node.deadline = Deadline.after(END_GRACE_S)

    # -- failures ------------------------------------------------------------------------

    def _note(self, node: NodeRecord, failure: Failure) -> None:
        if node.failure is None:
            node.failure = failure
        if not self._may_restart(node) and not node.was_broken_off:
            self._failures.append(failure)
            if self._signal is None or not failure.was_asked_for:
                self._end_all()

    def _may_restart(self, node: NodeRecord) -> bool:
        return (
            self._give_up_at is None
            and self._signal is None
            and node.failure is not None
            and node.failure.may_pass
            and node.returned is None
            and node.num_restarts < self._job.max_retries
        )

    def _restart(self, node: NodeRecord) -> bool:
        """Schedule the next incarnation of an ended node; return whether it gets one."""
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
            self._job.max_retries,
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
            if node.stage != RUNNING:
                # A report that it runs may be unread, and be the cause of the others' end.
                self._read_messages(node)
            if node.is_over or node.returned is not None:
                continue
            if node.stage == RUNNING:
                if self._nodes.is_cut_off(node):
                    self._tell_to_finish(node)
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
            self._kill(node)
        self._spread_end()

    def _tell_to_finish(self, node: NodeRecord) -> None:
        if node.was_told_to_finish or node.connection is None:
            return
        node.was_told_to_finish = True
        with suppress(OSError):  # it has died; the fork server will report it
            node.connection.send(Finish())

    def _report_exit(self, ended: NodeRecord) -> None:
        """Tell the peers that a process has ended, so that their `close` does not wait for it."""
        for near in self._nodes.peers_of(ended):
            # One that has its work reads this once it is connected, and may have been already.
            if near.stage != STARTING and near.connection is not None:
                with suppress(OSError):  # it has died; the fork server will report it
                    near.connection.send(Ended(ended.spec.node_id, ended.spec.incarnation))

    def _kill(self, node: NodeRecord) -> None:
        if node.pid is not None and not node.is_over:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(node.pid, signal.SIGKILL)

    def _start_node(self, node: NodeRecord) -> None:
        ours, theirs = multiprocessing.Pipe()
        node.connection, node.start_at = ours, None
        node.deadline = Deadline.after(self._timeout)
        with theirs:
            ours.send({**self._preparation, "name": f"node {node.spec.node_id}"})
            self._fork_server.send(theirs.fileno(), start=node.spec.node_id)

    def _kill_lingering(self, node: NodeRecord) -> None:
        logger.warning(
            "node %d has not ended %.0f s after its `main`, and was killed; a non-daemon thread "
            "keeps it alive, or it hangs while it closes resources",
            node.spec.node_id,
            EXIT_GRACE_S,
        )
        node.deadline = Deadline.after(None)
        self._kill(node)

    def _end_all(self) -> None:
        """End all nodes, with a grace period."""
        if self._give_up_at is None:
            self._give_up_at = Deadline.after(END_GRACE_S + FORK_SERVER_GRACE_S)
            self._fork_server.send(end=END_GRACE_S)
        for node in self._nodes.values():
            if node.start_at is not None:
                node.start_at, node.is_over = None, True

    def _lose_fork_server(self, how: str) -> None:
        """End the job without the fork server, which alone knows the state of the nodes."""
        node_id = next(node.spec.node_id for node in self._nodes.values() if not node.is_over)
        if self._error is None and not self._failures:
            self._error = NodeFailed(
                f"The fork server, the parent of the nodes, {how}, so the nodes were killed. Its "
                f"last output, if any, is on standard error.",
                node_id=node_id,
            )
        self._fork_server.kill()
        self._kill_orphans()
        for node in self._nodes.values():
            node.is_over = True


def _preparation() -> dict[str, Any]:
    """Return the data that multiprocessing needs to import this program in a node."""
    preparation = spawn.get_preparation_data("node")
    return {**preparation, "authkey": bytes(preparation["authkey"])}
