"""Metrics that a node writes once a second, for any process of the user to read.

A record is a file in the private directory of the node's job. The node makes it when it starts and
rewrites it in place. That costs one short system call a second, and a reader needs neither a
connection nor an answer from a node that hangs. A record that is read in the middle of a write
fails its checksum and is read again.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from ding_lite.errors import ConfigError
from ding_lite.parallel.network.address import PrivateDirectory

logger = logging.getLogger(__name__)

PREFIX = "metrics-"
"""The prefix of the file's name, before the node id."""
MAX_BYTES = 2**20
_HEAD = struct.Struct("<II")
_TRIES = 5

State: TypeAlias = Literal[
    "starting", "running", "waiting", "finishing", "no task", "ended", "failed"
]
"""The state of a node in its own record. Only a reader can find that the node is gone."""
ENDED: tuple[State, ...] = ("ended", "failed")


_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**62)] | float


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts of a node: in total, or per second."""

    total_step: _Number | None = None
    """The present or last step of its task; None before the first."""
    env_step: _Number | None = None
    """`ctx.env_step`, if it is a number."""
    events_out: _Number = 0
    """Events sent; an event to three nodes counts three times."""
    events_in: _Number = 0
    ctx_out: _Number = 0
    ctx_in: _Number = 0
    items_out: _Number = 0

    def rate(self, before: Counts, seconds: float) -> Counts:
        rates = {}
        for name in self.__dataclass_fields__:
            now, then = getattr(self, name), getattr(before, name)
            if now is not None and then is not None:
                # The counts of a restarted peer, or of a second task, begin at 0 again.
                rates[name] = max(0.0, now - then) / seconds
        return Counts(**rates)


@dataclass(frozen=True, kw_only=True)
class PeerMetrics:
    """A peer, as a node sees it."""

    node_id: int
    labels: tuple[str, ...] = ()
    is_connected: bool = False
    has_left: bool = False
    unacknowledged: int = 0
    """Events that the peer has not acknowledged yet."""
    heard_s: float | None = None
    ctx_s: float | None = None
    """Seconds since the peer's newest ctx message: how far this node lags behind."""


@dataclass(frozen=True, kw_only=True)
class NodeMetrics:
    """The record of a node."""

    node_id: int
    num_nodes: int
    """How many nodes the job has; 0 if unknown."""
    labels: tuple[str, ...]
    pid: int
    program: str
    addresses: tuple[str, ...] = ()
    """The addresses that the node listens at and dials; nodes that share one are of one job."""
    restarts: int | None = None
    """The number of restarts of the node; None without a launcher."""
    began: float
    """When the node started, in seconds of the machine's monotonic clock."""
    at: float
    """When this record was written, on the same clock."""
    state: State
    where: str = ""
    """The line of the program where the task's thread is."""
    total: Counts
    per_second: Counts
    """Rates over the last second or so; empty in the first one."""
    inbox: int = 0
    """Events that wait to be delivered to the task."""
    items: int = 0
    """Items of streams that wait for the task to take them."""
    calls: int = 0
    """Calls that wait for another node's answer."""
    rejected: int = 0
    """Messages that were dropped: malformed, or not for this node."""
    peers: tuple[PeerMetrics, ...] = ()

    @property
    def unacknowledged(self) -> int:
        return sum(peer.unacknowledged for peer in self.peers)

    @property
    def lag_s(self) -> float | None:
        """The age of the oldest of the peers' newest ctx; None without any."""
        return max((peer.ctx_s for peer in self.peers if peer.ctx_s is not None), default=None)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(NodeMetrics)


class MetricsFile:
    """A node's record on disk."""

    def __init__(self, directory: Path, node_id: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(directory / f"{PREFIX}{node_id}", flags, 0o600)

    def write(self, metrics: NodeMetrics) -> None:
        body = _ENCODER.encode(metrics)
        if len(body) > MAX_BYTES - _HEAD.size:  # the labels of peers may be long
            peers = tuple(replace(peer, labels=()) for peer in metrics.peers)
            body = _ENCODER.encode(replace(metrics, peers=peers))
        os.pwrite(self._fd, _HEAD.pack(len(body), zlib.crc32(body)) + body, 0)

    def close(self) -> None:
        """Close the file; the record stays as long as the directory."""
        os.close(self._fd)


@contextmanager
def own_directory() -> Iterator[str | None]:
    """Make a private directory for the `with` block, for a node without one; None if that fails."""
    try:
        directory = PrivateDirectory()
    except (ConfigError, OSError) as error:
        logger.warning("`ding-lite top` will not see this node: %s", error)
        yield None
        return
    try:
        yield str(directory.path)
    finally:
        directory.remove()


def read_metrics(path: Path) -> NodeMetrics | None:
    """Read a node's record; return None if it is missing or damaged."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            for _ in range(_TRIES):
                data = os.pread(fd, MAX_BYTES, 0)
                if len(data) < _HEAD.size:
                    return None
                size, checksum = _HEAD.unpack_from(data)
                body = data[_HEAD.size : _HEAD.size + size]
                if len(body) == size and zlib.crc32(body) == checksum:
                    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                        return _DECODER.decode(body)
                    return None
        finally:
            os.close(fd)
    return None
