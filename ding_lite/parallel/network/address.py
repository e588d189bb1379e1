"""Addresses of nodes, and the private directories of their socket files.

`ipc://<path>` is a socket file, `tcp://<host>:<port>` a port, `inproc://<name>` a name within
one process. Socket files lie in a private directory of the job (mode 0700), so only processes
of the same user can reach them. Everything that is reachable from another machine is refused
unless a key restricts it to the nodes of the job.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from ding_lite.errors import ConfigError
from ding_lite.settings.rules import check_all, inside

Scheme = Literal["ipc", "tcp", "inproc"]
SCHEMES: tuple[str, ...] = get_args(Scheme)
LOOPBACK = "127.0.0.1"

MAX_IPC_PATH = 107
"""Bytes that the kernel allows for the path of a socket file."""
_ROOM_FOR_SUFFIX = 16
_PREFIX = "ding_lite-"
_LOCK = "lock"
_MAX_ADDRESS = 300  # characters; a host name has at most 255
ANY_HOST = {"", "*", "0.0.0.0", "::"}
"""Hosts that stand for every interface."""


@dataclass(frozen=True)
class Address:
    """A place to listen at or to connect to.

    Example:
        >>> Address.parse("tcp://127.0.0.1:50515")
        Address(scheme='tcp', place='127.0.0.1', port=50515)
        >>> str(Address("ipc", "/run/user/1000/job/node-0"))
        'ipc:///run/user/1000/job/node-0'
    """

    scheme: Scheme
    place: str
    """The host of `tcp`, the path of `ipc`, the name of `inproc`."""
    port: int = 0
    """The port of `tcp`; 0 takes a free one."""

    @classmethod
    def parse(cls, text: str) -> Address:
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in SCHEMES:
            raise ConfigError(
                f"{text!r} is no address: it must begin with one of ipc://, tcp://, inproc://. "
                f"An example is tcp://127.0.0.1:50515."
            )
        if scheme == "tcp":
            return _parse_tcp(text, rest)
        if not rest:
            raise ConfigError(f"{text!r} names no place; write ipc:///path or inproc://name.")
        address = cls(cast(Scheme, scheme), rest)
        if scheme == "ipc" and (length := len(os.fsencode(rest))) > MAX_IPC_PATH:
            raise ConfigError(
                f"The socket path {rest!r} has {length} bytes; the kernel allows {MAX_IPC_PATH}. "
                f"Set TMPDIR to a shorter directory, such as /tmp, or use `protocol='tcp'`."
            )
        return address

    def __str__(self) -> str:
        if self.scheme != "tcp":
            return f"{self.scheme}://{self.place}"
        host = f"[{self.place}]" if ":" in self.place else self.place
        return f"tcp://{host}:{self.port}"


def _parse_tcp(text: str, rest: str) -> Address:
    found = re.fullmatch(r"(?:\[(?P<six>[^\]]*)\]|(?P<host>[^:\[\]/]*)):(?P<port>[0-9]+)", rest)
    if found is None:
        raise ConfigError(
            f"{text!r} is no tcp address; write tcp://host:port, and an IPv6 host in brackets: "
            f"tcp://127.0.0.1:50515, tcp://[::1]:50515."
        )
    port = int(found["port"])
    check_all(inside(0, 65_535, port=port))
    return Address("tcp", found["host"] if found["six"] is None else found["six"], port)


def can_be_dialled(found: str) -> bool:
    """Return whether a text that another node has sent is a tcp address with a host and a port."""
    if len(found) > _MAX_ADDRESS:
        return False
    try:
        place = Address.parse(found)
    except ConfigError:
        return False
    return place.scheme == "tcp" and place.port > 0 and place.place not in ANY_HOST


# -- reachability --------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host; names are looked up first.

    It is false for `*`, `0.0.0.0` and `::`, which stand for every interface, for a name that cannot
    be looked up, and for one with any address of another machine.
    """
    if host in ANY_HOST:
        return False
    with suppress(ValueError):
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    try:
        places = [place.partition("%")[0] for place in look_up(host)]
    except ConfigError:
        return False
    return bool(places) and all(ipaddress.ip_address(place).is_loopback for place in places)


def look_up(host: str) -> list[str]:
    """Return the addresses of a host, in the order of `socket_addresses`."""
    try:
        return [str(place[0]) for _, place in socket_addresses(host)]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"The host {host!r} cannot be looked up: {error}. Write its number instead, without a "
            f"port, such as 127.0.0.1 or ::1."
        ) from error


def main_address(host: str) -> str:
    """Return the first address of a host; one of the loopback interface only if all are.

    On its own machine a name often stands for a loopback address first, as in the line
    `127.0.1.1 NAME` of Debian's /etc/hosts. Other machines never reach it there.
    """
    found = look_up(host)
    return next((number for number in found if not is_loopback(number)), found[0])


def socket_addresses(host: str, port: int = 0) -> list[tuple[int, Any]]:
    """Return the families and socket addresses of a host, those of IPv4 first.

    A name may have addresses of both versions of IP. Nodes listen on the first one and dial it, so
    that they agree.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted([(entry[0], entry[4]) for entry in found], key=lambda each: each[0])


def is_ipv6(host: str) -> bool:
    """Tell whether nodes dial a host by IPv6: other machines have no address of IPv4 for it.

    A name that cannot be looked up yet will be of the same version of IP as that of this machine.
    """
    for name in (host, socket.gethostname()):
        with suppress(ConfigError):
            return ":" in main_address(name)
    return False


def check_listening(address: Address, *, key_file: str | None) -> None:
    """Refuse to listen where other machines could connect without a key."""
    if address.scheme != "tcp" or key_file is not None or is_loopback(address.place):
        return
    if address.place not in ANY_HOST:
        look_up(address.place)
    raise ConfigError(
        f"{address if address.port else address.place or '*'} can be reached from other machines, "
        f"and no key is given. Listen on {LOOPBACK}, or give all nodes the same key: "
        f"`key_file=...`."
    )


def free_ports(host: str, count: int) -> list[int]:
    """Return different ports that are free now; another process may take one meanwhile."""
    sockets: list[socket.socket] = []
    try:
        [(family, place), *_] = socket_addresses(host)
        for _ in range(count):
            sockets.append(socket.socket(family, socket.SOCK_STREAM))
            sockets[-1].bind(place)
        return [int(one.getsockname()[1]) for one in sockets]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"`address` is {host!r}, where this machine cannot listen: "
            f"{getattr(error, 'strerror', None) or error}. Give the address of one of its own "
            f"interfaces, or 0.0.0.0 for all of them."
        ) from error
    finally:
        for one in sockets:
            one.close()


def is_taken(path: str | Path) -> bool:
    """Return whether a process listens on a socket file, which a killed one leaves behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # many connections wait to be accepted
            return True
        except OSError:
            return False
    return True


# -- the private directory -----------------------------------------------------------------


class PrivateDirectory:
    """A directory of a running job that only this user can enter.

    A lock in it shows whether its job is alive. Making or removing a directory also removes the
    directories of other jobs or nodes of the user of which all processes were killed.
    """

    def __init__(self, base: Path | None = None) -> None:
        base = _base() if base is None else base
        _sweep(base)
        self.path, self.lock_fd = _make_locked(base)
        """The descriptor of the lock; each process that has it keeps the directory alive."""

    def socket_of(self, node_id: int) -> Address:
        return Address("ipc", str(self.path / f"node-{node_id}"))

    def remove(self) -> None:
        """Delete the directory; do nothing the second time."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
            self.lock_fd = -1
            _sweep(self.path.parent)  # nodes beside this one may have been killed


def live_directories(folders: Iterable[Path] | None = None) -> list[Path]:
    found = []
    for folder in dict.fromkeys(_usual_folders() if folders is None else folders):
        for path in sorted(folder.glob(f"{_PREFIX}*")):
            with suppress(OSError):  # it may go while it is looked at
                if _is_alive(path):
                    found.append(path)
    return found


def _usual_folders() -> tuple[Path, ...]:
    return Path(f"/run/user/{os.getuid()}"), Path(tempfile.gettempdir()), Path("/tmp")


def job_name(directory: Path) -> str:
    """Return the name of a job, unique among running ones, by its private directory."""
    return directory.name.removeprefix(_PREFIX)


def _is_alive(path: Path) -> bool:
    """Return whether a directory is private, this user's, and its lock held."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        return False
    lock = os.open(path / _LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _base() -> Path:
    """Return the first directory that exists, is safe, and leaves room for a path."""
    runtime, *candidates = _usual_folders()
    with suppress(OSError):
        status = runtime.stat()
        private = status.st_uid == os.getuid() and not status.st_mode & 0o077
        if private and os.access(runtime, os.W_OK | os.X_OK):
            return runtime

    for candidate in candidates:
        longest = candidate / f"{_PREFIX}12345678" / "node-100000"
        if len(os.fsencode(longest)) + _ROOM_FOR_SUFFIX <= MAX_IPC_PATH and candidate.is_dir():
            return candidate
    raise ConfigError(
        f"No directory for socket files: the path of {candidates[0]} is too long for them, and "
        f"there is no /tmp. Set TMPDIR to a shorter directory, or use `protocol='tcp'`."
    )


def _make_locked(base: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path, lock
        os.close(lock)  # another job's sweep was faster than our lock


def _sweep(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another job may sweep at the same time
            if path.stat().st_uid != os.getuid() or path.is_symlink():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
