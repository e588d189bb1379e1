"""The composition of a task: its middleware, their labels and locks, and the step wrappers.

Before the first step it is compiled into a plain chain of callables, so that the loop makes no
decisions.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence, Set as AbstractSet
from contextlib import suppress
from functools import partial
from types import BuiltinMethodType, MethodType
from typing import Any, NamedTuple

from ding_lite.cancellation import current_scope
from ding_lite.errors import LabelError, MiddlewareError
from ding_lite.log import Throttle
from ding_lite.runtime.messaging.labels import check_patterns, matches
from ding_lite.runtime.middleware import (
    AnyResource,
    Middleware,
    StepWrapper,
    around,
    check_middleware,
    name_of,
    parts_of,
    resources_of,
)
from ding_lite.runtime.saving import Stateful

logger = logging.getLogger(__name__)


class Use(NamedTuple):
    """One middleware of a task, and where it runs."""

    fn: Middleware
    patterns: tuple[str, ...] | None
    lock: bool

    def is_for(self, labels: AbstractSet[str]) -> bool:
        return self.patterns is None or matches(labels, self.patterns)


class MiddlewareLock:
    """A lock for middleware of any shape, which blocks no event loop."""

    def __init__(self) -> None:
        # The outermost of all locks; docs/design/0016-the-order-of-locks.md has their order.
        self._lock = threading.Lock()
        self._wakes: deque[Callable[[], object]] = deque()
        """Wakes the coroutines that wait. Not by threads: their number is limited."""
        self._holder: int | None = None
        """The thread of the function that holds the lock; None for a coroutine."""

    def __enter__(self) -> None:
        if self._holder == threading.get_ident():
            raise MiddlewareError(
                "A middleware with `lock=True` runs another one by `task.forward`, which would "
                "wait for itself. Use one of them without `lock`."
            )
        self._lock.acquire()
        self._holder = threading.get_ident()
        if (scope := current_scope()) is not None and scope.is_cancelled:
            self._release()
            scope.check()

    def __exit__(self, *raised: object) -> None:
        self._release()

    async def __aenter__(self) -> None:
        wake_on = asyncio.get_running_loop().call_soon_threadsafe
        while not self._lock.acquire(blocking=False):
            woken = asyncio.Event()
            self._wakes.append(partial(wake_on, woken.set))
            if self._lock.acquire(blocking=False):  # released just before, so nothing would wake it
                return
            await woken.wait()

    async def __aexit__(self, *raised: object) -> None:
        self._release()

    def _release(self) -> None:
        self._holder = None
        self._lock.release()
        for _ in range(len(self._wakes)):
            with suppress(IndexError, RuntimeError):  # another thread took it; its loop has ended
                self._wakes.popleft()()


class Composition:
    """The middleware and step wrappers of a task on a node with these labels."""

    def __init__(self, labels: AbstractSet[str]) -> None:
        self.uses: list[Use] = []
        self._labels = labels
        self._wrappers: list[StepWrapper] = []
        self._wrapped: dict[object, tuple[Use, Middleware, int]] = {}
        self._lock = MiddlewareLock()
        self._throttle = Throttle(logger)

    def use(self, fn: Middleware, filter_labels: str | Iterable[str] | None, lock: bool) -> None:
        check_middleware(fn)
        patterns = None if filter_labels is None else check_patterns(filter_labels)
        self.uses.append(Use(fn, patterns, lock))

    def wrap(self, wrapper: StepWrapper) -> None:
        """Wrap every middleware; a later wrapper goes around the earlier ones."""
        if isinstance(wrapper, type) or not callable(wrapper):
            raise MiddlewareError(
                f"A step wrapper is a callable that takes a middleware and returns one, "
                f"not {wrapper!r}. Give an object: `task.use_step_wrapper(StepTimer())`."
            )
        self._wrappers.append(wrapper)

    def chain(self) -> list[Middleware]:
        here = self._here()
        if self.uses and not here:
            patterns = sorted({p for use in self.uses for p in use.patterns or ()})
            raise LabelError(
                f"No middleware of this task matches the labels of this node: "
                f"{sorted(self._labels)}. `filter_labels` in use: {patterns}. Start the node "
                f"with one of them (roles=, labels= or DING_LITE_LABELS), or give a middleware "
                f"one of its labels."
            )
        for use in self.uses:
            if not use.is_for(self._labels):
                self._throttle.once(
                    logging.INFO,
                    f"{id(use)}",
                    "left out `%s`: it runs on %s, and this node has %s",
                    name_of(use.fn),
                    " or ".join(use.patterns or ()),
                    ", ".join(sorted(self._labels)),
                )
        return [self._compile(use, id(use)) for use in here]

    def names(self) -> list[str]:
        """Return the names of the middleware of `chain`; a second `train` is `train#2`."""
        return distinct([name_of(use.fn) for use in self._here()])

    def resources(self) -> list[AnyResource]:
        """Return the middleware and wrappers that live as long as a run: context managers."""
        candidates: list[Any] = [use.fn for use in self._here()] + self._wrappers
        found = {id(r): r for candidate in candidates for r in resources_of(candidate)}
        return list(found.values())

    def stateful(self) -> dict[str, Stateful]:
        """Return the middleware, and parts of composed ones, that can be saved, by their names."""
        here = [part for use in self._here() for part in _with_parts(use.fn)]
        names = distinct([name_of(part) for part in here])
        return {
            name: part for name, part in zip(names, here, strict=True) if isinstance(part, Stateful)
        }

    def wrapped(self, fn: Middleware) -> Middleware:
        """Return a middleware for `forward`, wrapped as it is, or would be, in the chain."""
        identity = _identity(fn)
        for use in self.uses:
            if _identity(use.fn) == identity:
                return self._compile(use, id(use))
        if identity not in self._wrapped:
            check_middleware(fn)
        if not self._wrappers:  # not remembered: a function made for one step may hold its batch
            return fn
        return self._compile(Use(fn, None, lock=False), identity)

    def _here(self) -> list[Use]:
        return [use for use in self.uses if use.is_for(self._labels)]

    def _compile(self, use: Use, key: object) -> Middleware:
        """Wrap and lock a middleware, with each wrapper once, as a second one would count twice."""
        use, fn, num_done = self._wrapped.get(key, (use, use.fn, 0))
        for wrapper in self._wrappers[num_done:]:
            fn = wrapper(fn)
            if not callable(fn):
                raise MiddlewareError(
                    f"The step wrapper `{name_of(wrapper)}` made {fn!r} of the middleware "
                    f"`{name_of(use.fn)}`; a callable of one ctx was expected. "
                    f"Does it end without `return`?"
                )
        self._wrapped[key] = use, fn, len(self._wrappers)
        return around(fn, lambda ctx: self._lock) if use.lock else fn


def _with_parts(fn: Any) -> list[Any]:
    return [fn, *(inner for part in parts_of(fn) for inner in _with_parts(part))]


def _identity(fn: Middleware) -> object:
    """Return the identity of a middleware: a bound method is a new object at each access."""
    return fn if isinstance(fn, MethodType | BuiltinMethodType) else id(fn)


def distinct(names: Sequence[str]) -> list[str]:
    """Number repeated names.

    Example:
        >>> distinct(["collect", "train", "train"])
        ['collect', 'train', 'train#2']
    """
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return numbered
