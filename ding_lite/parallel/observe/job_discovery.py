"""Discover the running jobs of this user on this machine, from the metrics of their nodes.

It reads the records in the private directories of jobs, and sends no messages to nodes. The state
and the memory of a process come from /proc, so nodes need not report them, and a node that hangs is
shown as well.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.errors import ConfigError, did_you_mean
from ding_lite.parallel.link.session import SILENCE_S
from ding_lite.parallel.network.address import job_name, live_directories
from ding_lite.parallel.observe import metrics
from ding_lite.parallel.observe.metrics import NodeMetrics, PeerMetrics, State, read_metrics

Seen: TypeAlias = State | Literal["stopped", "silent", "gone", "elsewhere", "lost"]
"""The state of a node, from its fresh record or else as the reader sees it: `stopped` by a signal,
`silent` with a live process, `gone` without a record of its end, `elsewhere` on another machine as
its peers report, and `lost` as its peers report."""
OVER: tuple[Seen, ...] = (*metrics.ENDED, "gone", "elsewhere", "lost")


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node of a job, as seen from outside."""

    node_id: int
    labels: tuple[str, ...]
    state: Seen
    metrics: NodeMetrics | None = None
    """The node's own record; None if only another node has reported it."""
    beat_s: float | None = None
    """Seconds since the node's last record, or its last message to another node."""
    rss_bytes: int | None = None
    """Memory of the node's process, shared memory included."""


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """A job, as seen from outside."""

    name: str
    program: str
    num_nodes: int
    age_s: float
    nodes: tuple[Node, ...]

    @property
    def is_over(self) -> bool:
        """Whether no process of the job is left on this machine."""
        return all(node.state in OVER for node in self.nodes)


def running_jobs(
    folders: Iterable[Path] | None = None, *, clock: Clock = SYSTEM_CLOCK
) -> list[RunningJob]:
    """Return the jobs of this user that run on this machine, the oldest first."""
    records: dict[str, list[NodeMetrics]] = {}
    for directory in live_directories(folders):
        found = [read_metrics(path) for path in sorted(directory.glob(f"{metrics.PREFIX}*"))]
        records[job_name(directory)] = [record for record in found if record is not None]
    now = clock.now()
    jobs = [_job(name, records, now) for name, records in _by_job(records).items()]
    return sorted((job for job in jobs if not job.is_over), key=lambda job: (-job.age_s, job.name))


def choose(jobs: Sequence[RunningJob], name: str) -> RunningJob:
    """Return the job with a name, a prefix of one, or the process id of one of its nodes."""
    found = [job for job in jobs if job.name == name]
    found = found or [
        job for job in jobs if any(name == str(n.metrics.pid) for n in job.nodes if n.metrics)
    ]
    found = found or [job for job in jobs if name and job.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    names = [job.name for job in (found or jobs)]
    if found:
        raise ConfigError(f"{name!r} may be any of the jobs {', '.join(names)}. Name one of them.")
    running = f"Running are: {', '.join(names)}." if names else "No job of yours runs here."
    raise ConfigError(f"There is no job {name!r}.{did_you_mean(name, names)} {running}")


def _by_job(found: Mapping[str, Sequence[NodeMetrics]]) -> dict[str, list[NodeMetrics]]:
    """Group records into jobs: those of one directory, or with a common address.

    Each node without a launcher has its own directory. Such nodes are grouped by the addresses that
    they listen at and dial, and their job has the name of its oldest directory.
    """
    jobs: list[tuple[set[str], list[str]]] = []
    for name, records in found.items():
        shared = {a for record in records for a in record.addresses if a.startswith("tcp")}
        names = [name] if records else []
        for job in [job for job in jobs if job[0] & shared]:
            jobs.remove(job)
            shared, names = shared | job[0], [*names, *job[1]]
        if names:
            jobs.append((shared, names))

    def age(name: str) -> tuple[float, str]:
        return min(record.began for record in found[name]), name

    return {min(names, key=age): [r for name in names for r in found[name]] for _, names in jobs}


def _job(name: str, records: Sequence[NodeMetrics], now: float) -> RunningJob:
    newest: dict[int, NodeMetrics] = {}
    for record in sorted(records, key=lambda record: record.at):
        newest[record.node_id] = record
    nodes = {node_id: _node(record, now) for node_id, record in newest.items()}
    for record in newest.values():
        for peer in record.peers:
            if peer.node_id not in newest and (peer.labels or peer.heard_s is not None):
                nodes[peer.node_id] = _reported_node(peer, nodes.get(peer.node_id), now - record.at)
    first = min(records, key=lambda record: record.node_id)
    return RunningJob(
        name=name,
        program=first.program,
        num_nodes=max(len(nodes), *(record.num_nodes for record in records)),
        age_s=now - min(record.began for record in records),
        nodes=tuple(nodes[node_id] for node_id in sorted(nodes)),
    )


def _node(record: NodeMetrics, now: float) -> Node:
    process = _process(record.pid)
    state: Seen = record.state
    if state not in metrics.ENDED:
        if process is None:
            state = "gone"
        elif process == "T":
            state = "stopped"
        elif now - record.at > SILENCE_S:
            state = "silent"
    return Node(
        node_id=record.node_id,
        labels=record.labels,
        state=state,
        metrics=record,
        beat_s=max(0.0, now - record.at),
        rss_bytes=_rss(record.pid) if process is not None else None,
    )


def _reported_node(peer: PeerMetrics, known: Node | None, age_s: float) -> Node:
    """Make a node from the report of a peer, unless the known node is newer."""
    heard_s = None if peer.heard_s is None else peer.heard_s + age_s
    if known is not None and (known.beat_s or 0.0) <= (heard_s or math.inf):
        return known
    state: Seen = "ended" if peer.has_left else "elsewhere" if peer.is_connected else "lost"
    return Node(node_id=peer.node_id, labels=peer.labels, state=state, beat_s=heard_s)


def _process(pid: int) -> str | None:
    with suppress(OSError, IndexError):
        status = Path(f"/proc/{pid}/stat").read_text()
        letter = status.rpartition(")")[2].split()[0]
        return None if letter in "ZX" else letter.upper()
    return None


def _rss(pid: int) -> int | None:
    with suppress(OSError, IndexError, ValueError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return None
