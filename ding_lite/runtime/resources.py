"""Resources of a run: middleware and step wrappers that are context managers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any


class Resources:
    """Enters context managers, each once, and leaves them in reverse order."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._entered: dict[int, AbstractContextManager[Any]] = {}

    def enter(self, resources: Iterable[AbstractContextManager[Any]]) -> None:
        """Enter the resources that have not been entered since the last `leave`."""
        for resource in resources:
            if id(resource) not in self._entered:
                self._stack.enter_context(resource)
                self._entered[id(resource)] = resource

    def leave(self, error: BaseException | None) -> None:
        """Leave all resources; they see the exception of the run, but cannot suppress it."""
        stack, self._stack, self._entered = self._stack, ExitStack(), {}
        stack.__exit__(type(error) if error else None, error, None)
