"""Resources of a run: middleware and step wrappers that are context managers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    suppress,
)
from functools import partial
from typing import Any

from ding_lite.runtime.concurrency import Executor
from ding_lite.runtime.middleware import AnyResource, name_of, refuse_silent_exit, shape_of


class Resources:
    """Enters context managers, each once, and leaves them in reverse order.

    Asynchronous ones are entered and left by one asyncio task on the loop of the executor. One that
    is both is asynchronous if its calls are.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._stack = ExitStack()
        self._entered: dict[int, AnyResource] = {}

    def enter(self, resources: Iterable[AnyResource]) -> None:
        """Enter the resources that have not been entered since the last `leave`."""
        for resource in resources:
            if id(resource) in self._entered:
                continue
            if isinstance(resource, AbstractContextManager) and not _is_async(resource):
                with _refused_exit(f"`__enter__` of `{name_of(resource)}`"):
                    resource.__enter__()
                self._stack.push(partial(_exit, resource))
            else:
                self._stack.push(partial(_end, self._executor.settle(_held(resource))))
            self._entered[id(resource)] = resource

    def leave(self, error: BaseException | None) -> None:
        """Leave all resources; they see the exception of the run or of another resource."""
        stack, self._stack, self._entered = self._stack, ExitStack(), {}
        with _refused_exit("`__exit__` of a middleware"):
            stack.__exit__(type(error) if error else None, error, None)


def _is_async(resource: Any) -> bool:
    return hasattr(resource, "__aenter__") and shape_of(resource).is_async


def _exit(resource: AbstractContextManager[Any], *raised: Any) -> None:
    """Leave a resource, which cannot suppress an exception: whatever it returns is dropped."""
    resource.__exit__(*raised)


async def _held(resource: Any) -> AsyncGenerator[None, None]:
    async with resource:
        yield


def _end(opened: Any, _kind: object, error: BaseException | None, _: object) -> None:
    """Leave an asynchronous resource, which cannot suppress an exception either."""
    try:
        with suppress(StopIteration):
            next(opened) if error is None else opened.throw(error)
    except BaseException as raised:
        if raised is not error:  # which the stack raises by itself
            raise


@contextmanager
def _refused_exit(subject: str) -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        raised = refuse_silent_exit(error, subject)
        if raised is error:
            raise
        raise raised from error
