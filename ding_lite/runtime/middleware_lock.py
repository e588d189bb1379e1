"""A lock for middleware of any shape that must not run at the same time."""

from __future__ import annotations

import asyncio
import threading

from ding_lite.cancellation import current_scope


class MiddlewareLock:
    """A lock that functions and coroutines can share without blocking the loop."""

    def __init__(self) -> None:
        # The outermost of all locks; docs/design/0016-the-order-of-locks.md has their order.
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        if (scope := current_scope()) is not None and scope.is_cancelled:
            self._lock.release()
            scope.check()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    async def __aenter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        waiting = asyncio.get_running_loop().run_in_executor(None, self._lock.acquire)
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:  # the thread still waits: release once it has the lock
            waiting.add_done_callback(lambda _: self._lock.release())
            raise

    async def __aexit__(self, *raised: object) -> None:
        self._lock.release()
