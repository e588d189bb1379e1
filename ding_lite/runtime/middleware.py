"""Middleware: their shapes and names, and code that runs around them.

A middleware is any callable of one argument, the context. A generator function with one
`yield` runs code before and after the rest of the step; a coroutine function or an
asynchronous generator does the same on the task's event loop.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncContextDecorator,
    ContextDecorator,
    suppress,
)
from typing import Any, NoReturn, TypeAlias

from ding_lite.errors import MiddlewareError, kind_of
from ding_lite.interruption import refuse_exit
from ding_lite.runtime.context import Context

Middleware = Callable[[Context], Any]
"""Any callable of one ctx: function, generator function, coroutine function, object."""

MakeMiddleware = Callable[[Mapping[str, Any]], Sequence[Middleware]]
"""Makes middleware of the parts of a run, such as its policy and its environments."""

StepWrapper = Callable[[Middleware], Middleware]
"""Takes a middleware and returns one that runs code around it."""

AnyResource: TypeAlias = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
"""A middleware or step wrapper that is entered when a run begins and left when it ends."""

Stretch = Callable[[Context], AbstractContextManager[Any]]
"""Makes the context manager around one part of a middleware's code; see `around`."""


class MiddlewareShape(enum.Enum):
    """The ways in which a middleware runs."""

    FUNCTION = "function"
    GENERATOR = "generator"
    COROUTINE = "coroutine"
    ASYNC_GENERATOR = "async generator"

    @property
    def is_async(self) -> bool:
        return self in (MiddlewareShape.COROUTINE, MiddlewareShape.ASYNC_GENERATOR)


def shape_of(fn: Middleware) -> MiddlewareShape:
    """Return the shape of a middleware, as far as it is known before the call."""
    fn = _innermost(fn)
    call = fn if inspect.isroutine(fn) else type(fn).__call__

    if inspect.iscoroutinefunction(call):
        return MiddlewareShape.COROUTINE
    if inspect.isasyncgenfunction(call):
        return MiddlewareShape.ASYNC_GENERATOR
    if inspect.isgeneratorfunction(call):
        return MiddlewareShape.GENERATOR
    return MiddlewareShape.FUNCTION


def name_of(fn: Any) -> str:
    """Return the name of a middleware or listener in messages, timings and diagrams.

    A leading `_`, which factories give the function they return, is left out.
    """
    fn = _innermost(fn)
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return name.strip("_").strip("<>") or name


def named(fn: Any, name: str) -> Any:
    """Give a function or generator the name of the middleware that it stands for."""
    fn.__name__ = name
    return fn


def naming_generators(fn: Middleware) -> Middleware:
    """Let generators of a middleware have its name; those of an object are named `__call__`."""
    if inspect.isroutine(fn) or shape_of(fn) is not MiddlewareShape.GENERATOR:
        return fn
    name = name_of(fn)
    return lambda ctx: named(fn(ctx), name)


def composed_of(fn: Any, parts: Sequence[Middleware]) -> None:
    fn._ding_lite_parts = tuple(parts)


def parts_of(fn: Any) -> tuple[Middleware, ...]:
    parts: object = getattr(fn, "_ding_lite_parts", ())
    return parts if isinstance(parts, tuple) else ()  # a mock has any attribute


def resources_of(fn: Any) -> list[AnyResource]:
    """Return the context managers to enter before a middleware runs: itself, or its parts."""
    is_one = isinstance(fn, AbstractContextManager | AbstractAsyncContextManager)
    found: list[AnyResource] = [fn] if is_one else []
    for part in parts_of(fn):
        found += resources_of(part)
    return found


def _innermost(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def note_once(error: BaseException, where: str) -> None:
    """Add a note on the origin of an exception, unless it has that note or takes none."""
    if getattr(error, "_ding_lite_noted", False) is not True:
        with suppress(Exception):  # its class may refuse notes
            error.add_note(where)
            error._ding_lite_noted = True  # type: ignore[attr-defined]


def refuse_silent_exit(error: BaseException, subject: str) -> BaseException:
    """Replace an exit with code 0, which would look like a finished program, by an error.

    An exit with another code already says that something is wrong, and is returned unchanged.
    """
    if not isinstance(error, SystemExit) or error.code not in (None, 0):
        return error
    try:
        refuse_exit(
            error,
            subject,
            MiddlewareError,
            "That would end the program as if it had finished. Set `ctx.finish = True` to end the "
            "job after this step, or raise an error.",
        )
    except (MiddlewareError, SystemExit) as refused:
        return refused


def check_middleware(fn: Any) -> None:
    """Refuse an object that cannot be called with one ctx, and name the likely mistake."""
    if fn is None:
        raise MiddlewareError(
            "A middleware is a callable of one argument `ctx`, not None. Does the factory that "
            "should make it end without `return`?"
        )
    if inspect.isgenerator(fn) or inspect.iscoroutine(fn) or inspect.isasyncgen(fn):
        raise MiddlewareError(
            f"`{fn.__name__}` has been called already: this is what the call returned, "
            f"{kind_of(fn)}. Give the function itself: `task.use({fn.__name__})`."
        )
    if isinstance(fn, type):
        raise MiddlewareError(
            f"`{fn.__name__}` is a class, and calling it would make an object instead of "
            f"running a step. Give an object of it: `task.use({fn.__name__}(...))`."
        )
    if not callable(fn):
        raise MiddlewareError(
            f"A middleware is a callable of one argument `ctx`, not {fn!r}, {kind_of(fn)}."
        )
    _check_signature(fn)


def _check_signature(fn: Middleware) -> None:
    try:
        signature = inspect.signature(fn, follow_wrapped=False)
        if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
            signature = inspect.signature(fn)  # the arguments that a decorator only passes on
    except (TypeError, ValueError):
        return  # a builtin without a signature: its first call will tell
    try:
        signature.bind(None)
    except TypeError:
        name, taken = name_of(fn), len(signature.parameters)
        needs = f"`{name}({', '.join(signature.parameters)})` cannot be called with `ctx` alone"
        if taken > 1:
            mend = (
                f"If it is a factory, call it: `task.use({name}(...))`; "
                f"else bind the rest with functools.partial or a closure."
            )
        else:
            mend = (
                f"Give it one positional argument, `ctx`; "
                f"or, if it is a factory, call it: `task.use({name}())`."
            )
        raise MiddlewareError(f"{needs}, as a middleware must be. {mend}") from None


def refuse_result(out: Any) -> None:
    """Refuse a function or context manager that a middleware made instead of running a step."""
    if isinstance(out, ContextDecorator | AsyncContextDecorator):
        raise MiddlewareError(
            "A middleware returned a context manager, which nothing enters. A generator function "
            "is a middleware as it is: leave out `@contextmanager`."
        )
    if not (callable(out) and hasattr(out, "__name__")):  # a name: also a middleware of ours
        return
    qualified: str = getattr(out, "__qualname__", out.__name__)
    *_, factory, name = ["", *qualified.split(".<locals>.")]
    call = f"`task.use({factory}(...))`" if factory else "`task.use(factory(...))`"
    raise MiddlewareError(
        f"A middleware returned the function `{name}`, which nothing calls. If it is a factory, "
        f"call it: {call}. Otherwise return None."
    )


LAST = object()
"""Yielded a second time, by a middleware that runs after the way out of all others: the code after
`yield LAST` sees the step complete, wherever the middleware stands."""


def refuse_second_yield(name: str) -> NoReturn:
    raise MiddlewareError(
        f"`{name}` has yielded a second time: a middleware may `yield` once, "
        f"and what follows runs on the way out. Split it in two, or use an event."
    )


def around(fn: Middleware, stretch: Stretch) -> Middleware:
    """Surround each part of a middleware's code by a context manager, whatever its shape.

    A function has one part; a generator has two, before and after its `yield`. The rest of the
    step, which runs in between, is outside. `stretch(ctx)` makes the manager, which may be an
    asynchronous one for shapes that run on the loop. The result has the same name and shape.
    """
    name, shape = name_of(fn), shape_of(fn)
    surrounded: Middleware

    if shape is MiddlewareShape.COROUTINE:

        async def surrounded(ctx: Context) -> Any:
            return await _awaited(fn(ctx), ctx, stretch)

    elif shape is MiddlewareShape.ASYNC_GENERATOR:
        surrounded = _around_async_generator(fn, stretch)
    elif shape is MiddlewareShape.GENERATOR:
        surrounded = _around_generator(fn, stretch)
    else:

        def surrounded(ctx: Context) -> Any:
            with stretch(ctx):
                out = fn(ctx)
            return None if out is None else around_rest(out, ctx, stretch, name)

    named(surrounded, name)
    return surrounded


def is_awaitable(out: object) -> bool:
    return hasattr(type(out), "__await__")  # faster than `inspect.isawaitable`


async def awaiting(out: Any) -> Any:
    """Await any object, as a coroutine."""
    return await out


def around_rest(out: Any, ctx: Context, stretch: Stretch, name: str) -> Any:
    """Surround what is left of a function that has returned a generator or a coroutine."""
    if inspect.iscoroutine(out):
        return _awaited(out, ctx, stretch)
    if isinstance(out, Generator):
        return named(_around_generator(lambda _: out, stretch), name)(ctx)
    if isinstance(out, AsyncGenerator):
        return named(_around_async_generator(lambda _: out, stretch), name)(ctx)
    return _awaited(awaiting(out), ctx, stretch) if is_awaitable(out) else out


async def _awaited(coroutine: Any, ctx: Context, stretch: Stretch) -> Any:
    try:
        async with _asynchronous(stretch(ctx)):
            return await coroutine
    finally:
        coroutine.close()  # for a coroutine that was cancelled before it began


def _around_generator(fn: Middleware, stretch: Stretch) -> Middleware:
    def surrounded(ctx: Context) -> Generator[Any, None, None]:
        inner, ended = fn(ctx), object()
        with stretch(ctx):
            out = next(inner, ended)
        while out is not ended:  # a second yield is the caller's to judge
            try:
                yield out
            except BaseException as error:  # noqa: BLE001 - it is the inner one's to handle
                with stretch(ctx):
                    try:
                        out = inner.throw(error)
                    except StopIteration:
                        return
            else:
                with stretch(ctx):
                    out = next(inner, ended)

    return surrounded


def _around_async_generator(fn: Middleware, stretch: Stretch) -> Middleware:
    async def surrounded(ctx: Context) -> AsyncGenerator[None, None]:
        inner = fn(ctx)
        async with _asynchronous(stretch(ctx)):
            async for _ in inner:
                break
            else:
                return
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - it is the inner one's to handle
            async with _asynchronous(stretch(ctx)):
                try:
                    await inner.athrow(error)
                except StopAsyncIteration:
                    return
        else:
            async with _asynchronous(stretch(ctx)):
                async for _ in inner:
                    break
                else:
                    return
        yield  # the caller refuses it

    return surrounded


class _Asynchronous:
    """Makes a synchronous context manager usable by `async with`, faster than a generator does."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return self._manager.__enter__()

    async def __aexit__(self, *raised: Any) -> bool | None:
        return self._manager.__exit__(*raised)


def _asynchronous(manager: Any) -> AbstractAsyncContextManager[Any]:
    if isinstance(manager, AbstractAsyncContextManager):
        return manager
    return _Asynchronous(manager)
