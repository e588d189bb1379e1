"""Functions that run at the same time, each on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ding_lite.runtime.messaging.local_router import LocalRouter
from ding_lite.runtime.messaging.router import use_router


def together(*functions: Callable[[], Any]) -> list[Any]:
    """Return the results of all functions, or raise the first exception once all have ended."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [called.result() for called in [pool.submit(fn) for fn in functions]]


def on_nodes(num_nodes: int, main: Callable[[int], object], **kwargs: Any) -> list[Any]:
    """Return the results of `main(node_id)` on the nodes of a group."""

    def run(router: LocalRouter) -> object:
        with use_router(router):
            return main(router.node_id)

    return together(*(partial(run, router) for router in LocalRouter.group(num_nodes, **kwargs)))
