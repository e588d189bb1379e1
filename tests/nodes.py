"""Nodes of a `Cluster`, which delivers messages on threads of its own."""

from __future__ import annotations

from ding_lite.parallel.router.node_router import NodeRouter

WAIT_S = 10.0


def delivered(*routers: NodeRouter) -> None:
    """Return once the peers of these nodes have all that the nodes have sent before."""
    for router in routers:
        links = router.links
        with links.changed:
            sessions = links.sessions.values()
            is_empty = links.changed.wait_for(lambda: all(s.is_flushed for s in sessions), WAIT_S)  # noqa: B023
        assert is_empty, f"messages of node {router.node_id} are under way"
