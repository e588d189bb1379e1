"""The router of a node in a tree, and a factory that chooses the router of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.router.calls import Handler
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.router.topics import Outbox
from ding_lite.parallel.transport.base import Transport
from ding_lite.parallel.tree.relay import Relay


class TreeRouter(NodeRouter):
    """A router that relays messages between its peers."""

    def _make_relay(self) -> Relay:
        others = Outbox(self.node_id, self._shared_sender, self._clock)
        return Relay(self._spec, self.links, self._calls, others, self._clock)


def make_router(
    spec: NodeSpec,
    *,
    transport: Transport | None = None,
    clock: Clock = SYSTEM_CLOCK,
    services: Mapping[str, Handler] | None = None,
    on_peer: Callable[[int, bool], None] = lambda peer, is_there: None,
) -> NodeRouter:
    """Make a `TreeRouter` for a node of a tree, else a `NodeRouter`, from their arguments."""
    kind = TreeRouter if spec.fan_out else NodeRouter
    return kind(spec, transport=transport, clock=clock, services=services, on_peer=on_peer)
