"""The router of this node, and how it is set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ding_lite.runtime.messaging.base import Router
from ding_lite.runtime.messaging.local_router import LocalRouter

__all__ = ["Router", "current_router", "is_alone", "use_router"]


def is_alone(router: Router) -> bool:
    """Return whether this node has no peers, as far as it knows."""
    return not (router.peers if router.grows else router.has_audience)


_CURRENT: ContextVar[Router | None] = ContextVar("ding_lite_router", default=None)
_ANSWERS: ContextVar[bool] = ContextVar("ding_lite_answers", default=False)


class _Process:
    """The routers of the nodes that run in this process; threads of a node use a single one."""

    def __init__(self) -> None:
        self.routers: list[Router] = []


_PROCESS = _Process()


def current_router() -> Router:
    """Return this node's router; a `LocalRouter` if no job was launched."""
    if (router := _CURRENT.get()) is not None:
        return router
    if len(_PROCESS.routers) == 1:
        return _PROCESS.routers[0]
    router = LocalRouter()
    _CURRENT.set(router)
    return router


def is_helper_thread() -> bool:
    """Return whether this thread was started by the `main` of its node, or answers a call."""
    return _CURRENT.get() is None or _ANSWERS.get()


@contextmanager
def use_router(router: Router) -> Iterator[Router]:
    """Make a router the current one, in this thread, within a `with` block."""
    token = _CURRENT.set(router)
    try:
        yield router
    finally:
        _CURRENT.reset(token)


@contextmanager
def answering(router: Router) -> Iterator[None]:
    """Make a router the current one of a thread that answers a call, within a `with` block."""
    token = _ANSWERS.set(True)
    try:
        with use_router(router):
            yield
    finally:
        _ANSWERS.reset(token)


@contextmanager
def use_router_in_process(router: Router) -> Iterator[Router]:
    """Make a router the current one, in this thread and those that have none of their own."""
    _PROCESS.routers.append(router)
    try:
        with use_router(router):
            yield router
    finally:
        if router in _PROCESS.routers:  # else this is a child that was forked meanwhile
            _PROCESS.routers.remove(router)


def _forget_in_child() -> None:
    """Make a process that a node has forked a single node, as a spawned one is."""
    if not isinstance(_CURRENT.get(), LocalRouter):
        _PROCESS.routers.clear()
        _CURRENT.set(None)


os.register_at_fork(after_in_child=_forget_in_child)
