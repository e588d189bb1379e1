"""Nodes of a `Cluster`, which delivers messages on threads of its own."""

from __future__ import annotations

from functools import partial

from ding_lite.parallel.router.node_router import NodeRouter

WAIT_S = 10.0


def delivered(*routers: NodeRouter) -> None:
    """Return once the peers of these nodes have all that the nodes have sent before."""
    for router in routers:
        with router.links.changed:
            is_delivered = router.links.changed.wait_for(partial(_is_flushed, router), WAIT_S)
        assert is_delivered, f"messages of node {router.node_id} are under way"


def _is_flushed(router: NodeRouter) -> bool:
    return all(session.is_flushed for session in router.links.sessions.values())
