"""Nodes of a `Cluster`, which delivers messages on threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.messaging.router import use_router
from ding_lite.runtime.task import Task

WAIT_S = 10.0


def delivered(*routers: NodeRouter) -> None:
    """Return once the peers of these nodes have all that the nodes have sent before."""
    for router in routers:
        with router.links.changed:
            is_delivered = router.links.changed.wait_for(partial(_is_flushed, router), WAIT_S)
        assert is_delivered, f"messages of node {router.node_id} are under way"


def found_at_the_end(router: NodeRouter, wait: Callable[[], object]) -> object:
    """Return what a wait returns in a step of a task that another thread ends meanwhile."""
    found: list[object] = []
    with use_router(router), Task() as task:
        end = threading.Timer(0.1, lambda: setattr(task, "finish", True))
        task.use(lambda ctx: end.start()).use(lambda ctx: found.append(wait())).run()
    return found[0]


def _is_flushed(router: NodeRouter) -> bool:
    return all(session.is_flushed for session in router.links.sessions.values())
