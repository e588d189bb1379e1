"""The router of this node, and how it is set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ding_lite.runtime.messaging.base import Router
from ding_lite.runtime.messaging.local_router import LocalRouter

__all__ = ["Router", "current_router", "is_alone", "use_router"]


def is_alone(router: Router) -> bool:
    """Return whether this node has no peers, as far as it knows."""
    return not (router.is_active if router.grows else router.has_audience)


_CURRENT: ContextVar[Router] = ContextVar("ding_lite_router")
_OF_PROCESS: list[Router] = []
"""The routers of nodes that run in this process; the threads of a node use a single one."""


def current_router() -> Router:
    """Return this node's router; a `LocalRouter` if no job was launched."""
    try:
        return _CURRENT.get()
    except LookupError:
        if len(_OF_PROCESS) == 1:
            return _OF_PROCESS[0]
        router = LocalRouter()
        _CURRENT.set(router)
        return router


@contextmanager
def use_router(router: Router) -> Iterator[Router]:
    """Make a router the current one, in this thread, within a `with` block."""
    token = _CURRENT.set(router)
    try:
        yield router
    finally:
        _CURRENT.reset(token)


@contextmanager
def use_router_in_process(router: Router) -> Iterator[Router]:
    """Make a router the current one, in this thread and those that have none of their own."""
    _OF_PROCESS.append(router)
    try:
        with use_router(router):
            yield router
    finally:
        _OF_PROCESS.remove(router)
