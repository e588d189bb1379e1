"""Nodes over tcp on the loopback interface, for tests of admission."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.router.node_router import NodeRouter

LOOPBACK = "tcp://127.0.0.1:0"


def hub_spec(num_nodes: int = 3, *, listen: str = LOOPBACK, **more: Any) -> NodeSpec:
    """Return the spec of node 0 of a star."""
    return NodeSpec(
        node_id=0,
        num_nodes=num_nodes,
        labels=frozenset({"node.0"}),
        listen=listen,
        peers=frozenset(range(1, num_nodes)),
        **more,
    )


def leaf_spec(node_id: int, hub: str | None, num_nodes: int = 3, **more: Any) -> NodeSpec:
    """Return the spec of another node of a star."""
    return NodeSpec(
        node_id=node_id,
        num_nodes=num_nodes,
        labels=frozenset({f"node.{node_id}"}),
        dials={0: str(hub)},
        peers=frozenset({0}),
        **more,
    )


class Ears:
    """Record arrivals at a node, and wait for them."""

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


def close_all(routers: Iterable[NodeRouter]) -> None:
    for router in routers:
        router.close()
