"""A transport within one process, for clusters in tests without a socket.

The nodes of a cluster share a `Network`, in which a test injects faults. The transport fulfils the
contract of `base` as ZeroMQ does. A message is copied when it is delivered, so two nodes never
share memory, and a sender that changes a frame afterwards is detected. The node at the other end is
known, as on encrypted tcp, and a node that is no peer is refused.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from ding_lite.clock import SYSTEM_CLOCK, Clock, Deadline
from ding_lite.errors import ConfigError, TransportError
from ding_lite.log import Throttle
from ding_lite.parallel.network.address import Address
from ding_lite.parallel.transport.base import (
    CLOSE_TIMEOUT_S,
    Frame,
    Lane,
    Link,
    Sink,
    Transport,
    log_failure,
)

logger = logging.getLogger(__name__)

_READ_AT_ONCE = 256
_News: TypeAlias = Callable[[Sink], None]


class Network:
    """The network between nodes of one process; injected faults hold for later links, too.

    Nodes are named by their ids.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._listening: dict[str, InprocTransport] = {}
        self._wires: dict[Link, _Wire] = {}
        self._num_wires = 0
        self._cut: set[frozenset[int]] = set()
        self._held: set[tuple[int, int, Lane]] = set()

    # -- called by tests ----------------------------------------------------------

    def cut(self, one: int, other: int) -> None:
        """Break the links between two nodes, and prevent new ones until `mend`.

        Messages under way are lost, and both sinks are called.
        """
        with self._lock:
            self._cut.add(frozenset((one, other)))
            for wire in self._between(one, other):
                self._disconnect(wire)

    def mend(self, one: int, other: int) -> None:
        with self._lock:
            self._cut.discard(frozenset((one, other)))
            self._connect_all()

    def hold(self, sender: int, receiver: int, *lanes: Lane) -> None:
        """Hold the messages of one node to another until `release`; neither is notified.

        Holding one lane lets the other one overtake it. Holding both, which is the default, makes a
        link that is dead in one direction and seems to be alive.
        """
        with self._lock:
            self._held |= {(sender, receiver, lane) for lane in lanes or Lane}

    def release(self, sender: int, receiver: int, *lanes: Lane) -> None:
        with self._lock:
            self._held -= {(sender, receiver, lane) for lane in lanes or Lane}
            self._connect_all()

    def heal(self) -> None:
        with self._lock:
            self._cut.clear()
            self._held.clear()
            self._connect_all()

    def remove(self, node_id: int) -> None:
        """Remove a node as if it were killed: its links break.

        Its place is free for a later incarnation. The removed node has no links any more, but must
        still be closed.
        """
        with self._lock:
            diallers = [wire.dialler for wire in self._wires.values()]
            for transport in {*self._listening.values(), *diallers}:
                if transport._node_id == node_id:
                    self._forget(transport)

    def under_way(self, sender: int, receiver: int) -> int:
        """Return the number of messages of one node that were not delivered to another one yet."""
        with self._lock:
            return sum(
                len(pipe)
                for wire in self._between(sender, receiver)
                for (to, _), pipe in wire.pipes.items()
                if to._node_id == receiver
            )

    # -- called by the transports, with the lock held ---------------------------------------

    def _between(self, one: int, other: int) -> list[_Wire]:
        return [wire for wire in self._wires.values() if wire.nodes == {one, other}]

    def _remove(self, wire: _Wire) -> None:
        del self._wires[wire.link]
        for end in wire.ends:
            del end._wires[wire.link]

    def _connect_all(self) -> None:
        for wire in list(self._wires.values()):
            self._connect(wire)
            for end in wire.ends:
                end._changed.notify()

    def _connect(self, wire: _Wire) -> None:
        listener = self._listening.get(wire.name)
        if wire.listener is not None or listener is None or wire.nodes in self._cut:
            return
        refusal = None if wire.was_up else _refusal(wire, listener)
        if refusal is not None:
            self._remove(wire)
            wire.dialler._notify(lambda sink: sink.on_refused(wire.node_id, refusal))
            reason = f"Node {wire.dialler._node_id} is no peer of node {listener._node_id}."
            listener._notify(lambda sink: sink.on_rejected(reason))
            return
        wire.listener, wire.was_up = listener, True
        listener._wires[wire.link] = wire
        wire.pipes = {(end, lane): deque() for end in wire.ends for lane in Lane}
        wire.dialler._notify(lambda sink: sink.on_up(wire.link, wire.node_id))

    def _disconnect(self, wire: _Wire) -> None:
        if wire.listener is None:
            return
        listener, wire.listener = wire.listener, None
        del listener._wires[wire.link]
        wire.pipes = {}
        wire.dialler._notify(lambda sink: sink.on_down(wire.link))
        listener._notify(lambda sink: sink.on_suspicion())
        self._changed.notify_all()

    def _forget(self, transport: InprocTransport) -> None:
        for name, listening in list(self._listening.items()):
            if listening is transport:
                del self._listening[name]
        for wire in list(transport._wires.values()):
            self._disconnect(wire)
            if wire.dialler is transport:
                self._remove(wire)


@dataclass(eq=False)
class _Wire:
    dialler: InprocTransport
    node_id: int  # that is dialled
    name: str
    link: Link
    listener: InprocTransport | None = None  # while the link is up
    was_up: bool = False
    pipes: dict[tuple[InprocTransport, Lane], deque[Sequence[Frame]]] = field(default_factory=dict)
    """The messages under way, by receiver and lane."""

    @property
    def nodes(self) -> frozenset[int]:
        return frozenset((self.dialler._node_id, self.node_id))

    @property
    def ends(self) -> list[InprocTransport]:
        return [self.dialler] if self.listener is None else [self.dialler, self.listener]

    def opposite(self, end: InprocTransport) -> InprocTransport:
        return next(other for other in self.ends if other is not end)


class InprocTransport(Transport):
    """Moves messages over the `inproc://` addresses of one network.

    It cannot pump: messages stay on its own thread. They are received whole, so there is nothing
    to `forget`.
    """

    def __init__(
        self,
        network: Network,
        node_id: int,
        *,
        peers: Iterable[int] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._network = network
        self._node_id = node_id
        self._peers = frozenset(peers)
        self._clock = clock
        self._changed = threading.Condition(network._lock)
        self._wires: dict[Link, _Wire] = {}
        """The links that are dialled here, and those from elsewhere that are up."""
        self._news: deque[_News] = deque()
        self._todo: deque[_News] = deque()
        self._throttle = Throttle(logger)
        self._thread: threading.Thread | None = None
        self._wants_tick = False
        self._is_closing = False

    def listen(self, address: str) -> str:
        name = _name_of(address)
        with self._network._lock:
            if (other := self._network._listening.setdefault(name, self)) is not self:
                raise TransportError(
                    f"This node cannot listen on {address}: node {other._node_id} of the same "
                    f"network does. Is another job using it?"
                )
            self._network._connect_all()
        return address

    def dial(self, node_id: int, address: str) -> None:
        name, network = _name_of(address), self._network
        with network._lock:
            network._num_wires += 1
            token = f"{self._node_id}-{node_id}-{network._num_wires}"
            wire = _Wire(self, node_id, name, Link(token.encode()))
            network._wires[wire.link] = self._wires[wire.link] = wire
            network._connect(wire)

    def redial(self, node_id: int, address: str) -> None:
        _name_of(address)
        with self._network._lock:
            for wire in list(self._wires.values()):
                if wire.dialler is self and wire.node_id == node_id:
                    self._network._remove(wire)
                    if wire.listener is not None:
                        wire.listener._notify(lambda sink: sink.on_suspicion())
        self.dial(node_id, address)

    def admit(self, node_id: int) -> None:
        with self._network._lock:
            self._peers |= {node_id}

    def start(self, sink: Sink) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(sink,), name=f"ding_lite-transport-{self._node_id}", daemon=True
        )
        self._thread.start()

    def send(self, link: Link, lane: Lane, frames: Sequence[Frame]) -> bool:
        with self._network._lock:
            wire = self._wires.get(link)
            if wire is None or wire.listener is None:
                return False
            other = wire.opposite(self)
            if not other._is_closing:
                wire.pipes[other, lane].append(list(frames))
                other._changed.notify()
            return True

    def wake(self) -> None:
        with self._network._lock:
            self._wants_tick = True
            self._changed.notify()

    @property
    def is_calling(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self) -> None:
        with self._network._lock:
            if self._is_closing:
                return
            self._is_closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        with self._network._lock:
            wires = list(self._wires.values())
            for wire in wires:  # so that senders of unread messages do not wait
                for lane in Lane:
                    wire.pipes.get((self, lane), deque()).clear()
            self._network._changed.notify_all()
            Deadline.after(CLOSE_TIMEOUT_S).wait(  # not on `self._clock`, which may stand still
                self._network._changed,
                lambda: not any(any(wire.pipes.values()) for wire in wires),
            )
            self._network._forget(self)

    def owner(self, link: Link) -> int | None:
        with self._network._lock:
            wire = self._wires.get(link)
            if wire is None:
                return None
            return wire.node_id if wire.dialler is self else wire.dialler._node_id

    def received_at(self, link: Link) -> float:
        return 0.0

    def drop(self, link: Link) -> None:
        with self._network._lock:
            wire = self._wires.get(link)
            if wire is not None:
                self._network._disconnect(wire)
                self._network._connect(wire)

    def _notify(self, news: _News) -> None:
        self._news.append(news)
        self._changed.notify()

    def _run(self, sink: Sink) -> None:
        while not self._is_closing:
            try:
                self._tick(sink)
            except BaseException as error:  # noqa: BLE001 - the thread serves all peers
                log_failure(self._throttle, error)
        sink.on_tick()

    def _tick(self, sink: Sink) -> None:
        with self._network._lock:
            self._wants_tick = False
        before = self._clock.now()  # a tick may come early, but not late
        deadline = Deadline(self._clock, before + sink.on_tick())
        if not self._todo:
            self._todo.extend(self._wait_for_news(deadline))
        while self._todo and not self._is_closing:
            self._todo.popleft()(sink)

    def _take_ready(self) -> list[_News]:
        found: dict[Lane, list[_News]] = {lane: [] for lane in Lane}
        for wire in self._wires.values():
            for lane, at_once in ((Lane.CONTROL, _READ_AT_ONCE), (Lane.BULK, 1)):
                pipe = wire.pipes.get((self, lane))
                sender = wire.opposite(self)._node_id if pipe else -1
                if not pipe or (sender, self._node_id, lane) in self._network._held:
                    continue
                for _ in range(min(at_once, len(pipe))):
                    found[lane].append(partial(_deliver, wire.link, lane, pipe.popleft()))
        if any(found.values()):
            self._network._changed.notify_all()
        return found[Lane.CONTROL] + found[Lane.BULK]

    def _wait_for_news(self, deadline: Deadline) -> list[_News]:
        found: list[_News] = []

        def has_come() -> bool:
            found.extend(self._news)
            self._news.clear()
            found.extend(self._take_ready())
            return bool(found) or self._wants_tick or self._is_closing

        with self._network._lock:
            deadline.wait(self._changed, has_come)
        return found


def _name_of(address: str) -> str:
    parsed = Address.parse(address)
    if parsed.scheme != "inproc":
        raise ConfigError(f"{address} leads out of this process; expected is inproc://name.")
    return parsed.place


def _refusal(wire: _Wire, listener: InprocTransport) -> str | None:
    if listener._node_id != wire.node_id:
        return f"node {listener._node_id} listens at inproc://{wire.name}."
    if wire.dialler._node_id not in listener._peers:
        return "it does not count this node among its peers."
    return None


def _deliver(link: Link, lane: Lane, frames: Sequence[Frame], sink: Sink) -> None:
    if lane is Lane.CONTROL:
        sink.on_message(link, [bytes(frame) for frame in frames])
    else:
        sink.on_message(link, [memoryview(bytearray(frame)) for frame in frames])
