"""The fork server: a small process between the launcher and its nodes.

Nodes are forked, because importing torch takes 1 to 2 seconds and a fork of a process that has
imported it takes none. Python's own fork server would do that too, but it keeps the environment and
the output of its first use, outlives the job, and leaves its directory behind if its user is
killed. So each job has a fork server of this package.

Only a process with a single thread may fork. The fork server imports the slow modules that the
launcher names, and starts over without them if an import has started a thread. As the nodes' parent
only it can signal them safely: the kernel does not reuse a process id before the parent has reaped
the process. However the launcher ends, the fork server runs until it has ended the nodes and
deleted the job's directory.

Protocol: the launcher sends `{"start": node}` with the descriptor of the node's connection,
`{"signal": number}` for all nodes, and `{"end": seconds}`. The fork server sends `{"started":
node, "pid": ...}` and `{"exited": node, "code": ...}`, or `{"failed": node, "why": ...}` if it
could not start a node, and `{"stopped": node, "pid": ...}` after SIGSTOP, without a pid after
SIGCONT. One message is one packet of JSON.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing import spawn
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ding_lite.clock import Deadline
from ding_lite.io.files import limit_of, why
from ding_lite.parallel.memory.segments import remove_left_over
from ding_lite.parallel.supervise.job import END_GRACE_S
from ding_lite.parallel.supervise.node_process import SIGNALS, NodeProcess

MAX_PACKET = 65_536
_PAUSES = os.WSTOPPED | os.WCONTINUED | os.WNOHANG


def fork_server_command(
    sys_path: Iterable[str], control_fd: int, life_fd: int, directory: str, preload: Iterable[str]
) -> list[str]:
    """Return the command line of a fork server; `life_fd` closes when the launcher ends."""
    code = f"import sys; sys.path[:] = {list(sys_path)!r}; "
    code += "from ding_lite.parallel.supervise.fork_server import run_fork_server as run; run()"
    interpreter = spawn.get_command_line()[:-3]  # all but `-c`, its code, and a marker
    return [*interpreter, "-c", code, f"{control_fd}", f"{life_fd}", directory, *preload]


def run_fork_server() -> None:
    """Run the fork server that the command line describes."""
    _, control_fd, life_fd, directory, *preload = sys.argv
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # a signal here is meant for the launcher
    num_threads = _num_threads()  # those of numpy's BLAS, which ends them before a fork
    gc.disable()  # collections take a tenth of the time of importing torch
    for name in preload:
        with suppress(ImportError):
            importlib.import_module(name)
    if preload and _num_threads() > num_threads:
        os.execv(sys.executable, sys.orig_argv[: -len(preload)])

    gc.freeze()  # a collection in a node would copy all shared pages
    gc.enable()
    server = _ForkServer(int(control_fd), int(life_fd), directory)
    with server.control:
        server.run()
    shutil.rmtree(directory, ignore_errors=True)
    remove_left_over()  # the shared memory of killed nodes
    # Nothing is left to close, and the teardown of imported modules would delay the launcher.
    os._exit(0)


def _num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


class _ForkServer:
    def __init__(self, control_fd: int, life_fd: int, directory: str) -> None:
        self.control = socket.socket(fileno=control_fd)
        self._life_fd = life_fd
        self._directory = directory
        self._nodes: dict[int, NodeProcess] = {}
        self._has_launcher = True
        self._kill_at: Deadline | None = None

        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)

    def run(self) -> None:
        """Serve the launcher until it and all nodes have ended."""
        signal.set_wakeup_fd(self._wake_w)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only to be woken
        # A program, or its parent, may have blocked it, and the mask is inherited.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        while self._has_launcher or self._nodes:
            sources: list[Any] = [self._wake_r]
            if self._has_launcher:
                sources.append(self.control)
            ready = wait(sources, None if self._kill_at is None else self._kill_at.remaining)

            if self._wake_r in ready:
                os.read(self._wake_r, 4096)
                self._reap()
            if self.control in ready:
                self._handle_command()
            if self._kill_at is not None and self._kill_at.expired:
                self._kill_at = None
                for process in self._nodes.values():
                    self._kill_group(process)

    def _handle_command(self) -> None:
        try:
            packet, fds, _, _ = socket.recv_fds(self.control, MAX_PACKET, 1)
        except ConnectionResetError:
            packet, fds = b"", []
        if not packet:
            self._has_launcher = False
            self._end(END_GRACE_S)
            return
        match json.loads(packet):
            case {"start": int(node_id)}:
                try:
                    self._start(node_id, fds)
                except OSError as error:
                    self._report(failed=node_id, why=_why(error))
            case {"signal": int(number)}:
                self._signal(number)
            case {"end": float(grace)}:
                self._end(grace)

    def _start(self, node_id: int, fds: Sequence[int]) -> None:
        if not fds:  # the system drops a descriptor that it cannot add to those of this process
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        connection: Connection[Any, Any] = Connection(fds[0])
        process = NodeProcess(
            node_id,
            connection,
            life_fd=self._life_fd,
            directory=self._directory,
            foreign_fds=(self.control.fileno(), self._wake_r, self._wake_w),
        )
        process.start()
        connection.close()
        with suppress(PermissionError, ProcessLookupError):  # the node has done so itself
            os.setpgid(_pid(process), _pid(process))
        self._nodes[node_id] = process
        self._report(started=node_id, pid=_pid(process))

    def _reap(self) -> None:
        for node_id, process in list(self._nodes.items()):
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            with suppress(ChildProcessError):  # reaped by the start of another node just now
                paused = os.waitid(os.P_PID, _pid(process), _PAUSES)
                if paused is not None:
                    is_stopped = paused.si_code == os.CLD_STOPPED
                    self._report(stopped=node_id, pid=_pid(process) if is_stopped else None)
                if os.waitid(os.P_PID, _pid(process), flags) is None:
                    continue
            # Until the process is reaped, its id is still that of its group.
            self._kill_group(process)
            process.join()
            self._report(exited=node_id, code=process.exitcode)
            process.close()
            del self._nodes[node_id]

    def _signal(self, number: int) -> None:
        for process in self._nodes.values():
            os.kill(_pid(process), number)

    def _end(self, grace: float) -> None:
        if self._kill_at is None:
            self._signal(signal.SIGTERM)
        kill_at = Deadline.after(grace)
        if self._kill_at is None or kill_at.instant < self._kill_at.instant:
            self._kill_at = kill_at

    def _kill_group(self, process: NodeProcess) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(_pid(process), signal.SIGKILL)

    def _report(self, **message: int | str | None) -> None:
        with suppress(OSError):  # the launcher has ended
            self.control.send(json.dumps(message).encode())


def _why(error: OSError) -> str:
    limit = limit_of(error)
    return f"{why(error)}. {limit}" if limit else why(error)


def _pid(process: NodeProcess) -> int:
    if process.pid is None:
        raise RuntimeError(f"{process.name} was never started")
    return process.pid
