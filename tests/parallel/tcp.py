"""Nodes in this process that are connected by sockets."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import zmq
from zmq.utils import z85

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.parallel.network.address import Address
from ding_lite.parallel.network.security import load_key
from ding_lite.parallel.network.topology import NodeSpec, edges, neighbours
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.messaging.inbox import FINISH
from tests.parallel.proxy import Proxy

LOOPBACK = "tcp://127.0.0.1:0"


def wait_until(ready: Callable[[], bool], what: str = "", seconds: float = 10.0) -> None:
    """Poll until a condition holds; there is no notification for it."""
    deadline = monotonic() + seconds
    while not ready():
        assert monotonic() < deadline, what
        SYSTEM_CLOCK.sleep(0.001)


def ipc_specs(directory: Path, num_nodes: int, topology: str, **more: Any) -> list[NodeSpec]:
    pairs = edges(topology, num_nodes)
    addresses = {k: f"ipc://{directory}/{k}" for k in range(num_nodes)}
    return [
        NodeSpec(
            node_id=k,
            num_nodes=num_nodes,
            labels=frozenset({"distributed", f"node.{k}", "hub" if k == 0 else "leaf"}),
            listen=addresses[k] if any(k == low for low, _ in pairs) else None,
            dials={peer: addresses[peer] for peer in neighbours(pairs, k) if peer < k},
            peers=neighbours(pairs, k),
            **more,
        )
        for k in range(num_nodes)
    ]


def hub_spec(num_nodes: int = 3, *, listen: str | None = LOOPBACK, **more: Any) -> NodeSpec:
    peers = {"peers": frozenset(range(1, num_nodes)), "labels": frozenset({"node.0"}), **more}
    return NodeSpec(node_id=0, num_nodes=num_nodes, listen=listen, **peers)


def leaf_spec(node_id: int, hub: str | None, num_nodes: int = 3, **more: Any) -> NodeSpec:
    peers = {"peers": frozenset({0}), "labels": frozenset({f"node.{node_id}"}), **more}
    return NodeSpec(node_id=node_id, num_nodes=num_nodes, dials={0: str(hub)}, **peers)


def bare_socket(context: zmq.Context[Any], route: bytes, key_file: str | None) -> Any:
    """Make a socket that node 0 lets in as node 2, if they share a key."""
    bare = context.socket(zmq.DEALER)
    bare.linger = 0
    bare.setsockopt(zmq.ROUTING_ID, route)
    if key_file is not None:
        key = load_key(key_file)
        own = z85.encode(key.of_dialler(2))
        bare.curve_secretkey, bare.curve_publickey = own, zmq.curve_public(own)
        bare.curve_serverkey = zmq.curve_public(z85.encode(key.of_listener(0)))
    return bare


class Recorder:
    def __init__(self, router: NodeRouter) -> None:
        self.events: list[tuple[int, str, tuple[Any, ...]]] = []
        self.ctx: defaultdict[int, dict[str, Any]] = defaultdict(dict)
        self._changed = threading.Condition()
        router.join(self)

    def receive_event(self, node_id: int, event: str, args: Any, kwargs: Any) -> None:
        with self._changed:
            self.events.append((node_id, event, args))
            self._changed.notify_all()

    def receive_ctx(self, node_id: int, values: Any) -> None:
        with self._changed:
            self.ctx[node_id].update(values)
            self._changed.notify_all()

    def wait(self, ready: Callable[[], bool], timeout: float = 15.0, what: str = "") -> None:
        with self._changed:
            assert self._changed.wait_for(ready, timeout), what

    def numbers(self, event: str = "n") -> list[Any]:
        return [args[0] for _, name, args in self.events if name == event]

    def of(self, sender: int, event: str = "n") -> list[Any]:
        """Return the numbers of one node's events."""
        return [args[0] for node, name, args in self.events if (node, name) == (sender, event)]

    def wait_for_numbers(self, count: int, event: str = "n") -> None:
        """Wait for so many events; check that their numbers have come once and in order."""
        self.wait(lambda: len(self.numbers(event)) >= count, what=f"{count} of {event}")
        assert self.numbers(event) == [*range(count)]

    @property
    def has_finished(self) -> bool:
        return any(event == FINISH for _, event, _ in self.events)


@dataclass
class Job:
    """Node 0, which a test attacks, and node 1, which must go on."""

    hub: NodeRouter
    leaf: NodeRouter
    recorder: Recorder
    key_file: str
    sent: int = 0

    @property
    def place(self) -> tuple[str, int]:
        address = Address.parse(str(self.hub.address))
        return address.place, address.port

    def goes_on(self) -> None:
        """Check that an event of node 1 arrives, and no other event."""
        self.leaf.emit("work", self.sent)
        self.sent += 1
        self.recorder.wait(lambda: self.of_leaf() == list(range(self.sent)))
        assert self.hub.peers == (1,)

    def of_leaf(self) -> list[int]:
        return self.recorder.of(1, "work")


@contextmanager
def wired(**more: Any) -> Iterator[tuple[NodeRouter, NodeRouter, Proxy]]:
    """Connect node 1 to node 0 over a wire; a node that a test has closed stays closed."""
    with ExitStack() as stack:
        hub = NodeRouter(hub_spec(2, **more))
        stack.callback(hub.close, good_bye=False)
        wire = stack.enter_context(Proxy(str(hub.address)))
        leaf = NodeRouter(leaf_spec(1, wire.address, 2, **more))
        stack.callback(leaf.close, good_bye=False)
        for router in (hub, leaf):
            router.wait_ready(10.0)
        yield hub, leaf, wire
