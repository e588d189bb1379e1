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


def current_router() -> Router:
    """Return this node's router; a `LocalRouter` if no job was launched."""
    try:
        return _CURRENT.get()
    except LookupError:
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
