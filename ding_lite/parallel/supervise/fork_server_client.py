"""Client of the fork server: start it, send commands, receive reports, stop it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from multiprocessing.connection import wait
from typing import Any

from ding_lite.clock import Deadline
from ding_lite.parallel.network.address import PrivateDirectory
from ding_lite.parallel.supervise.fork_server import MAX_PACKET, ForkServerSpec
from ding_lite.parallel.supervise.node_process import SIGNALS

FORK_SERVER_GRACE_S = 5.0
"""Seconds that the fork server has to end the nodes; then it is killed itself."""


class ForkServerClient:
    """The launcher's connection to its fork server."""

    def __init__(self) -> None:
        self._control, self._far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._life_r, self._life_w = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None

    def fileno(self) -> int:
        """Return a descriptor that is readable when the fork server has sent a message or ended."""
        return self._control.fileno()

    @property
    def pid(self) -> int | None:
        """The process id; None before the start."""
        return None if self._process is None else self._process.pid

    def start(
        self, directory: PrivateDirectory, *, preload: tuple[str, ...], sys_path: Iterable[str]
    ) -> None:
        """Start the process; messages are queued until it is ready.

        Args:
            directory: The job's directory; the fork server locks it, and deletes it at the end.
            preload: Modules to import for all nodes.
            sys_path: The `sys.path` of the fork server.
        """
        spec = ForkServerSpec(
            control_fd=self._far_end.fileno(),
            life_fd=self._life_r,
            directory=str(directory.path),
            preload=preload,
        )
        # Blocked from the start: for a moment it is in the process group that gets Ctrl-C.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._process = subprocess.Popen(
                spec.command(sys_path),
                stdin=subprocess.DEVNULL,
                pass_fds=(spec.control_fd, spec.life_fd, directory.lock_fd),
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._far_end.close()

    def send(self, *fds: int, **message: float) -> None:
        """Send a message with descriptors; does not report that the fork server has died."""
        with suppress(OSError):
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None when the fork server has ended."""
        packet = b""
        with suppress(ConnectionResetError):
            packet = self._control.recv(MAX_PACKET)
        return json.loads(packet) if packet else None

    def kill(self) -> None:
        """Kill the process, but not the nodes."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> bool:
        """End the fork server and its nodes; return whether it exited with success."""
        self.send(end=0.0)
        self._control.close()
        self._far_end.close()
        ended = True
        if self._process is not None:
            try:
                self._process.wait(FORK_SERVER_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            ended = self._process.returncode == 0
        for fd in (self._life_r, self._life_w):
            os.close(fd)
        return ended


def kill_groups(leaders: Iterable[int]) -> None:
    """Kill orphaned process groups, and wait until their leaders are dead."""
    with ExitStack() as stack:
        alive = []
        for pid in leaders:
            with suppress(ProcessLookupError, PermissionError):
                alive.append(os.pidfd_open(pid))
                stack.callback(os.close, alive[-1])
                os.killpg(pid, signal.SIGKILL)
        deadline = Deadline.after(FORK_SERVER_GRACE_S)
        while alive and not deadline.expired:
            ended = wait(alive, deadline.remaining)
            alive = [handle for handle in alive if handle not in ended]
