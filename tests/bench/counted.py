"""Clusters that count every message, and the time that each node spends on them.

The routers are the real ones; the network between them is `inproc`. Its own time is left out, as
it stands for machines that are not there. No clock runs, so no heartbeat comes between: the
counts of two runs are the same.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ding_lite.clock import SYSTEM_CLOCK, Deadline
from ding_lite.parallel.launch.membership import router_of
from ding_lite.parallel.network.topology import NodeSpec, Topology
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.base import Frame, Lane, Link, Sink
from ding_lite.parallel.transport.in_process import InprocTransport
from ding_lite.parallel.wire.messages import Kind
from ding_lite.testing import Cluster, ManualClock

SETTLING_S = 60.0
"""How long a step may take on a busy machine."""
PAUSE_S = 0.01
"""Between two looks at whether all have become quiet."""
LARGE_BYTES = 64 * 1024
_KIND_AT = 5


@dataclass
class Traffic:
    """Counts of the messages of one node, and the time that they took."""

    sent: Counter[Kind] = field(default_factory=Counter)
    received: Counter[Kind] = field(default_factory=Counter)
    large_sent: int = 0
    """Messages with an array of `LARGE_BYTES` and more."""
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0
    """CPU time of the thread that reads and writes messages, and of the program's calls."""

    def clear(self) -> None:
        self.sent.clear()
        self.received.clear()
        self.large_sent = self.sent_bytes = self.received_bytes = 0
        self.seconds = 0.0

    @property
    def messages(self) -> int:
        return self.sent.total() + self.received.total()

    @property
    def nbytes(self) -> int:
        return self.sent_bytes + self.received_bytes


class CountedTransport(InprocTransport):
    """Counts what passes, and times its sink."""

    traffic: Traffic

    def start(self, sink: Sink) -> None:
        super().start(_CountedSink(sink, self))

    def send(self, link: Link, lane: Lane, frames: Sequence[Frame]) -> bool:
        began = time.thread_time()
        is_sent = super().send(link, lane, frames)
        if is_sent:
            self.traffic.sent[Kind(frames[0][_KIND_AT])] += 1
            self.traffic.sent_bytes += sum(map(_nbytes, frames))
            self.traffic.large_sent += max(map(_nbytes, frames)) >= LARGE_BYTES
        self.traffic.seconds -= time.thread_time() - began  # the network's, not the node's
        return is_sent

    def owner(self, link: Link) -> int | None:
        began = time.thread_time()
        owner = super().owner(link)
        self.traffic.seconds -= time.thread_time() - began
        return owner


class _CountedSink:
    """A sink with a stop watch."""

    def __init__(self, sink: Sink, transport: CountedTransport) -> None:
        self._sink = sink
        self._transport = transport

    def on_message(self, link: Link, frames: list[Frame]) -> None:
        began, traffic = time.thread_time(), self._transport.traffic
        self._sink.on_message(link, frames)
        traffic.received[Kind(frames[0][_KIND_AT])] += 1
        traffic.received_bytes += sum(map(_nbytes, frames))
        traffic.seconds += time.thread_time() - began

    def on_tick(self) -> float:
        began = time.thread_time()
        wait_s = self._sink.on_tick()
        self._transport.traffic.seconds += time.thread_time() - began
        return wait_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


def _nbytes(frame: Frame) -> int:
    return frame.nbytes if isinstance(frame, memoryview) else len(frame)


class CountedCluster(Cluster):
    """A job of one learner, node 0, and collectors, with all messages counted."""

    def __init__(self, num_nodes: int, topology: Topology) -> None:
        self.traffic = [Traffic() for _ in range(num_nodes)]
        roles = ["learner"] + (num_nodes - 1) * ["collector"]
        super().__init__(num_nodes, topology, roles=roles, clock=ManualClock())
        self._versions = [router.subscribe("ctx/version") for router in self.routers]
        self._version = 0
        self.settle()

    def _make(self, spec: NodeSpec) -> NodeRouter:
        transport = CountedTransport(
            self.network, spec.node_id, peers=spec.peers, clock=self._clock
        )
        transport.traffic = self.traffic[spec.node_id]
        return router_of(spec, transport=transport, clock=self._clock)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count anew, what comes within the block and all that follows from it."""
        self.settle()
        for traffic in self.traffic:
            traffic.clear()
        yield
        self.settle()

    def settle(self) -> None:
        deadline = Deadline.after(SETTLING_S)
        while not self._is_quiet():
            assert not deadline.expired, "messages are still under way"
            SYSTEM_CLOCK.sleep(PAUSE_S)  # a thread that polls takes the lock of Python from them

    def _is_quiet(self) -> bool:
        if sum(each.messages for each in self.traffic) % 2:
            return False
        sent, received = Counter[Kind](), Counter[Kind]()
        for each in self.traffic:
            sent += Counter(each.sent)  # a copy at once: other threads still count
            received += Counter(each.received)
        is_answered = sent[Kind.STATE] == sent[Kind.CREDIT] and sent[Kind.CALL] == sent[Kind.REPLY]
        return sent == received and is_answered and not any(map(_has_more, self.routers))

    # -- what a step does ------------------------------------------------------------------

    def publish(self, weights: np.ndarray) -> None:
        """Let all get new weights from the learner, and all peers what a task tells them."""
        self._version += 1
        with self.timed(0):
            self.routers[0].publish_ctx({"version": self._version, "weights": weights})
        for version in self._versions[1:]:
            assert version.wait(self._is_new, timeout=SETTLING_S)
        for node, router in enumerate(self.routers):
            with self.timed(node):
                router.publish_ctx({"total_step": self._version, "env_step": 100 * self._version})

    def _is_new(self, newest: Mapping[str, Any]) -> bool:
        return newest.get("ctx/version") == self._version

    def collect(self, item: np.ndarray) -> int:
        """Let every collector send the learner an item; return how many waited there at most."""
        for node, router in enumerate(self.routers[1:], 1):
            with self.timed(node):
                router.send("work", item, to="learner")
        most = 0
        for _ in self.routers[1:]:
            self._wait_for_items()
            most = max(most, self.routers[0]._streams.num_waiting)
            with self.timed(0):
                assert self.routers[0].receive("work", timeout=SETTLING_S) is not None
        return most

    def _wait_for_items(self) -> None:
        """Let all come that may, so that the most that ever waits is seen."""
        deadline = Deadline.after(SETTLING_S)
        while not self.routers[0]._streams.num_waiting:
            assert not deadline.expired, "no item comes"
            SYSTEM_CLOCK.sleep(PAUSE_S)  # a thread that polls takes the lock of Python from them

    @contextmanager
    def timed(self, node: int) -> Iterator[None]:
        """Count what the program's own thread does for a node."""
        began = time.thread_time()
        yield
        self.traffic[node].seconds += time.thread_time() - began


def _has_more(router: NodeRouter) -> bool:
    sessions = router.links.sessions.values()
    return any(not session.is_flushed for session in sessions)
