"""Machines with a network of their own: one network namespace each, and a wire in between.

A machine is a process in a namespace of its own; its only way out is a TUN device. The test
holds the other end of it and passes packets on, so that it decides what becomes of them: they may
be late, be lost, or not come at all. The kernel's TCP sees a real network.
"""

from __future__ import annotations

import array
import heapq
import os
import random
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Self

from ding_lite.clock import SYSTEM_CLOCK
from tests.cli.calls import ROOT
from tests.procs.shells import Shell

PLUG = Path(__file__).with_name("plug.py")
MAX_PACKET = 65_536
IPV4 = 4


@cache
def why_not() -> str | None:
    """Return why no network namespace can be made here; None where one can."""
    try:
        with Network() as network:
            network.machine("10.77.0.1")
    except (OSError, RuntimeError) as error:
        return f"no network namespaces can be made here: {error}"
    return None


class Network:
    """A switch that machines are plugged into.

    Args:
        seed: Decides which packets are lost.
    """

    def __init__(self, seed: int = 0) -> None:
        self.delay_s = 0.0
        """How long each packet is under way."""
        self.loss = 0.0
        """The share of packets that are lost."""
        self._random = random.Random(seed)
        self._ports: dict[bytes, int] = {}
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._numbers = count()
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._pass_on, name="network", daemon=True)

    def machine(self, address: str) -> Machine:
        """Make a machine that is reached at an address of 10.77.0.0/24.

        Raises:
            RuntimeError: The kernel does not let this user make one.
        """
        machine = self._stack.enter_context(_plugged_in(address))
        self.plug_in(address, machine.port)
        self._selector.register(machine.port, selectors.EVENT_READ)
        return machine

    def plug_in(self, address: str, port: int) -> None:
        """Pass on what is for an address to a port from now on."""
        with self._lock:
            self._ports[socket.inet_aton(address)] = port

    def pull_out(self, address: str) -> None:
        """Lose what is for an address, or from it, from now on."""
        with self._lock:
            del self._ports[socket.inet_aton(address)]

    @contextmanager
    def without(self, address: str) -> Iterator[None]:
        """Cut a machine off for the length of a `with` block."""
        port = self._ports[socket.inet_aton(address)]
        self.pull_out(address)
        try:
            yield
        finally:
            self.plug_in(address, port)

    def move(self, machine: Machine, old: str, new: str) -> None:
        """Give a machine another address, and let go of the old one."""
        for line in (f"del {old}/24", f"add {new}/24"):
            subprocess.run(f"{machine.enter} ip addr {line} dev wire".split(), check=True)
        self.pull_out(old)
        self.plug_in(new, machine.port)

    def __enter__(self) -> Self:
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        os.write(self._wake_w, b"w")
        self._thread.join()
        self._stack.close()
        self._selector.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    def _pass_on(self) -> None:
        while True:
            now = SYSTEM_CLOCK.now()
            with self._lock:
                while self._under_way and self._under_way[0][0] <= now:
                    _, _, port, packet = heapq.heappop(self._under_way)
                    _write(port, packet)
                wait_s = self._under_way[0][0] - now if self._under_way else None
            for key, _ in self._selector.select(wait_s):
                if key.fd == self._wake_r:
                    return
                for packet in _packets(key.fd):
                    self._take(packet, key.fd)

    def _take(self, packet: bytes, source: int) -> None:
        if packet[0] >> 4 != IPV4:
            return
        with self._lock:
            sender, port = self._ports.get(packet[12:16]), self._ports.get(packet[16:20])
            if sender != source or port is None or self._random.random() < self.loss:
                return
            if self.delay_s == 0.0:
                _write(port, packet)
                return
            due = SYSTEM_CLOCK.now() + self.delay_s
            heapq.heappush(self._under_way, (due, next(self._numbers), port, packet))


class Machine:
    """A machine of a network.

    Args:
        pid: A process in it, which lives as long as it.
        port: The end of its wire.
    """

    def __init__(self, pid: int, port: int) -> None:
        self.enter = f"nsenter --preserve-credentials --user --net --target {pid} --"
        self.pid = pid
        self.port = port

    def type_line(self, folder: Path, line: str, **environ: str) -> Shell:
        """Type a line into a shell on this machine."""
        return Shell(folder, f"exec {self.enter} sh -c '{line}'", **environ)


@contextmanager
def _plugged_in(address: str) -> Iterator[Machine]:
    """Start what a machine consists of, and end it."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    command = [sys.executable, "-I", str(PLUG), str(there.fileno()), address]
    with here:
        with there:
            process = subprocess.Popen(
                ["unshare", "--map-root-user", "--net", *command],
                pass_fds=[there.fileno()],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        with process:
            output, ancillary, _, _ = here.recvmsg(1, socket.CMSG_SPACE(4))
            if not output:
                assert process.stderr is not None
                raise RuntimeError(process.stderr.read().strip())
            port = array.array("i", ancillary[0][2])[0]
            os.set_blocking(port, False)
            try:
                yield Machine(process.pid, port)
            finally:
                os.close(port)
                here.shutdown(socket.SHUT_WR)  # by which it ends


def _packets(port: int) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        for _ in range(64):  # then the others have a turn
            yield os.read(port, MAX_PACKET)


def _write(port: int, packet: bytes) -> None:
    with suppress(OSError):  # a full queue, or a machine that is gone: the packet is lost
        os.write(port, packet)
