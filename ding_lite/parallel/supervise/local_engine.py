"""The engine `local`: nodes are processes on this machine, started and reaped by a fork server."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing import spawn
from multiprocessing.connection import Connection, wait
from typing import Any

from ding_lite.clock import Deadline
from ding_lite.errors import ConfigError, DeadlineExceeded
from ding_lite.interruption import words_of
from ding_lite.io.files import max_files, named_limit
from ding_lite.io.importing import only_programs_in_files
from ding_lite.parallel.memory.segments import remove_left_over
from ding_lite.parallel.network.address import PrivateDirectory
from ding_lite.parallel.supervise.fork_server import MAX_PACKET, fork_server_command
from ding_lite.parallel.supervise.job import EngineLost, NodeRecord, Report
from ding_lite.parallel.supervise.node_process import (
    IMPORTING,
    RUNNING,
    SIGNALS,
    Call,
    Command,
    Entered,
    Exited,
    Failed,
    Returned,
    Stopped,
    explain_unpicklable,
    unpickled,
)

_FEW_FILES = 1024
FORK_SERVER_GRACE_S = 5.0
"""Seconds that the fork server has to end the nodes before it is killed."""


class _Unreadable(Failed):
    """Report: `main` has returned a result that cannot be unpickled here."""


@dataclass
class _Child:
    """The process of one incarnation of a node."""

    node: NodeRecord
    connection: Connection[Any, Any] | None
    pid: int | None = None
    """None before the process has started and after it has ended: the kernel may reuse the id."""
    is_doomed: bool = False
    """Whether to kill the process, even if it has not been started yet."""


class LocalEngine:
    """Starts the nodes of a job by a fork server."""

    name = "The fork server, the parent of the nodes,"
    forwards_signals = True

    def __init__(
        self, call: Call, directory: PrivateDirectory, *, preload: tuple[str, ...] = ()
    ) -> None:
        self._call = call
        self._directory = directory
        self._preload = preload
        self._children: dict[int, _Child] = {}
        self._preparation: dict[str, Any] = {}
        """The data with which multiprocessing imports this program in a node."""
        self._process: subprocess.Popen[bytes] | None = None
        self._control, self._far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._life_r, self._life_w = os.pipe()
        self._wake_r, self._wake_w = os.pipe()
        self._wake_lock = threading.Lock()
        self._is_closed = False

    def open(self) -> None:
        """Start the fork server; commands are queued until it is ready."""
        with only_programs_in_files():
            self._preparation = spawn.get_preparation_data("node")
        self._preparation["authkey"] = bytes(self._preparation["authkey"])
        fds = self._far_end.fileno(), self._life_r
        # Signals are blocked from the start: the fork server begins in the group that gets Ctrl-C.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._process = subprocess.Popen(
                fork_server_command(
                    self._preparation["sys_path"], *fds, str(self._directory.path), self._preload
                ),
                stdin=subprocess.DEVNULL,
                pass_fds=(*fds, self._directory.lock_fd),
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._far_end.close()

    def start(self, node: NodeRecord) -> None:
        node_id = node.spec.node_id
        ours, theirs = multiprocessing.Pipe()
        self._children[node_id] = _Child(node, ours)
        with theirs:
            ours.send({**self._preparation, "name": f"node {node_id}"})
            self._send(theirs.fileno(), start=node_id)

    def wait(self, timeout: float | None) -> Sequence[tuple[int, Report]]:
        lines = {c.connection: c for c in self._children.values() if c.connection is not None}
        sources: list[Any] = [self._wake_r, self._control, *lines]
        ready = wait(sources, timeout)
        if self._wake_r in ready:
            os.read(self._wake_r, 64)
        reports: list[tuple[int, Report]] = []
        for source in ready:
            if isinstance(source, Connection):
                reports += self._read(lines[source])
        if self._control in ready:
            reports += self._read_control(may_be_lost=not reports)
        if any(isinstance(report, Returned) for _, report in reports):
            # The cause of the end of that node's `main` may have been reported since `wait`.
            for child in lines.values():
                reports += self._read(child)
        return reports

    def wake(self) -> None:
        with self._wake_lock:
            if not self._is_closed:
                os.write(self._wake_w, b"w")

    def send(self, node_id: int, command: Command) -> None:
        connection = self._children[node_id].connection
        if connection is not None:
            with suppress(OSError):  # it has died; the fork server will report it
                connection.send(command)

    def interrupt(self, signum: int) -> None:
        self._send(signal=signum)

    def end(self, grace: float) -> None:
        self._send(end=grace)

    def kill(self, node_id: int) -> None:
        child = self._children[node_id]
        child.is_doomed = True
        if child.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)

    def startup_error(self, late: Sequence[NodeRecord], ready: Sequence[int]) -> Exception:
        listed = "; ".join(f"node {node.spec.node_id} was still {node.stage}" for node in late)
        return DeadlineExceeded(
            f"Not all nodes were ready within {late[0].spec.startup_timeout:g} s: {listed}. Ready "
            f"were: {', '.join(map(str, ready)) or 'none'}. If the program only takes long to "
            f"import, raise `startup_timeout`."
        )

    def close(self) -> None:
        self._send(end=0.0)
        self._control.close()
        self._far_end.close()
        if self._process is not None:
            try:
                self._process.wait(FORK_SERVER_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.returncode != 0:
                self._kill_orphans()
        for child in self._children.values():
            if child.connection is not None:
                child.connection.close()
        with self._wake_lock:
            self._is_closed = True
            for fd in (self._life_r, self._life_w, self._wake_r, self._wake_w):
                os.close(fd)
        self._directory.remove()

    def _send(self, *fds: int, **message: float) -> None:
        """Send the fork server a message with descriptors; `wait` finds out if it has died."""
        with suppress(OSError):
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)

    def _read(self, child: _Child) -> Iterator[tuple[int, Report]]:
        connection, spec = child.connection, child.node.spec
        try:
            while connection is not None and connection.poll():
                report = _receive(connection, spec.node_id)
                if isinstance(report, Failed) and report.pickled is not None:
                    report = replace(report, error=unpickled(report.pickled), pickled=None)
                yield spec.node_id, report
                if report == Entered(IMPORTING):
                    self._send_work(child, connection)
                elif isinstance(report, Returned | _Unreadable):
                    with suppress(OSError):
                        connection.send(None)  # the last command: the node may exit
        except (EOFError, OSError):
            if connection is not None:
                connection.close()
            child.connection = None  # it has ended; the fork server will report how

    def _send_work(self, child: _Child, connection: Connection[Any, Any]) -> None:
        call = self._call
        try:
            connection.send((child.node.spec, call.func))
            connection.send((call.args, call.keywords))  # apart, as only these may be unreadable
        except OSError:
            pass  # the node has died; its earlier messages are still to be read
        except Exception as error:
            parts: dict[str, object] = {"`main`": call.func}
            parts |= {f"argument {n} of `main`": arg for n, arg in enumerate(call.args, 1)}
            parts |= {f"argument `{n}` of `main`": arg for n, arg in call.keywords.items()}
            raise ConfigError(explain_unpicklable(parts, error)) from error

    def _read_control(self, *, may_be_lost: bool) -> Iterator[tuple[int, Report]]:
        packet = b""
        with suppress(ConnectionResetError):
            packet = self._control.recv(MAX_PACKET)
        if not packet and may_be_lost:
            raise EngineLost
        match json.loads(packet or b"null"):
            case {"started": int(node_id), "pid": int(pid)}:
                child = self._children[node_id]
                child.pid = pid
                if child.is_doomed:
                    self.kill(node_id)
            case {"failed": int(node_id), "why": str(why)}:
                child = self._children[node_id]
                if child.connection is not None:
                    child.connection.close()
                yield node_id, Exited("got no process", f": {why}")
                child.connection = None
            case {"stopped": int(node_id), "pid": pid}:
                yield node_id, Stopped(pid)
            case {"exited": int(node_id), "code": int(code)}:
                child = self._children[node_id]
                yield from self._read(child)  # its last messages may still be under way
                if child.connection is not None:
                    child.connection.close()
                yield node_id, exited(code, child.pid)
                child.connection = child.pid = None

    def _kill_orphans(self) -> None:
        with ExitStack() as stack:
            alive = []
            for pid in (child.pid for child in self._children.values() if child.pid is not None):
                with suppress(ProcessLookupError, PermissionError):
                    alive.append(os.pidfd_open(pid))
                    stack.callback(os.close, alive[-1])
                    os.killpg(pid, signal.SIGKILL)
            deadline = Deadline.after(FORK_SERVER_GRACE_S)
            while alive and not deadline.expired:
                ended = wait(alive, deadline.remaining)
                alive = [handle for handle in alive if handle not in ended]
        remove_left_over()


def _receive(connection: Connection[Any, Any], node_id: int) -> Any:
    """Receive a report; a result is the only one that may be unreadable."""
    try:
        return connection.recv()
    except Exception as fault:
        if isinstance(fault, EOFError | OSError) and connection.poll():  # the node has ended
            raise
        error = ConfigError(
            f"`main` of node {node_id} returned an object that cannot be read again: "
            f"{type(fault).__name__}: {words_of(fault)}. Return numbers, strings, arrays, or lists "
            f"and dicts of such."
        )
        return _Unreadable(RUNNING, "ConfigError", str(error), "", error)


def exited(code: int, pid: int | None) -> Exited:
    if code >= 0:
        return Exited(f"(process {pid}) ended with exit code {code}", ", without an error")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    more = ""
    if -code == signal.SIGKILL:
        more = ". If no user did that, the machine may have run out of memory"
    elif -code == signal.SIGABRT and max_files() < _FEW_FILES:
        more = f". ZeroMQ does that if it can open no file. {named_limit()}"
    return Exited(f"(process {pid}) was killed by {name}", more, -code)
