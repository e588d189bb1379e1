"""Resources of a run: middleware and step wrappers that are context managers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from ding_lite.runtime.middleware import name_of, refuse_silent_exit


class Resources:
    """Enters context managers, each once, and leaves them in reverse order."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._entered: dict[int, AbstractContextManager[Any]] = {}

    def enter(self, resources: Iterable[AbstractContextManager[Any]]) -> None:
        """Enter the resources that have not been entered since the last `leave`."""
        for resource in resources:
            if id(resource) not in self._entered:
                with _refused_exit(f"`__enter__` of `{name_of(resource)}`"):
                    resource.__enter__()
                self._stack.push(partial(_exit, resource))
                self._entered[id(resource)] = resource

    def leave(self, error: BaseException | None) -> None:
        """Leave all resources; they see the exception of the run or of another resource."""
        stack, self._stack, self._entered = self._stack, ExitStack(), {}
        with _refused_exit("`__exit__` of a middleware"):
            stack.__exit__(type(error) if error else None, error, None)


def _exit(resource: AbstractContextManager[Any], *raised: Any) -> None:
    """Leave a resource, which cannot suppress an exception: whatever it returns is dropped."""
    resource.__exit__(*raised)


@contextmanager
def _refused_exit(subject: str) -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        raised = refuse_silent_exit(error, subject)
        if raised is error:
            raise
        raise raised from error
