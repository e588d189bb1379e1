"""The router of a node in a tree, and a factory that chooses the router of a node."""

from __future__ import annotations

from typing import Any

from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.router.topics import Outbox
from ding_lite.parallel.tree.relay import Relay


class TreeRouter(NodeRouter):
    """A router that relays messages between its peers."""

    def _make_relay(self) -> Relay:
        others = Outbox(self.node_id, self._shared_sender, self._clock)
        return Relay(self._spec, self.links, self._calls, self._streams, others, self._clock)


def make_router(spec: NodeSpec, **parts: Any) -> NodeRouter:
    """Make a `TreeRouter` for a node of a tree, else a `NodeRouter`, from their arguments."""
    return (TreeRouter if spec.fan_out else NodeRouter)(spec, **parts)
