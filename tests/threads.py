"""Functions that run at the same time, each on a thread of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from ding_lite.runtime.messaging.local_router import LocalRouter
from ding_lite.runtime.messaging.router import use_router


def together(*functions: Callable[[], Any]) -> list[Any]:
    """Return the results of all functions, or raise the first exception once all have ended."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [called.result() for called in [pool.submit(fn) for fn in functions]]


@contextmanager
def switching_often() -> Iterator[None]:
    """Let threads overtake each other at any line within a `with` block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def on_nodes(num_nodes: int, main: Callable[[int], object], **kwargs: Any) -> list[Any]:
    """Return the results of `main(node_id)` on the nodes of a group."""

    def run(router: LocalRouter) -> object:
        with use_router(router):
            return main(router.node_id)

    return together(*(partial(run, router) for router in LocalRouter.group(num_nodes, **kwargs)))
