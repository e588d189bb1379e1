"""The shapes of middleware, and code around them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from unittest.mock import Mock

import pytest

from ding_lite import middleware as mw
from ding_lite.errors import MiddlewareError
from ding_lite.runtime import Context, Middleware, StepTimer, Task
from ding_lite.runtime.middleware import (
    LAST,
    MiddlewareShape,
    around,
    check_middleware,
    name_of,
    shape_of,
)


def function(ctx: Context) -> None: ...


def onion(ctx: Context) -> Iterator[None]:
    yield


async def coroutine(ctx: Context) -> None: ...


async def async_onion(ctx: Context) -> AsyncIterator[None]:
    yield


def two(ctx: Context, more: int) -> None: ...


def no_argument() -> None: ...


class Callable_:
    """Wears each shape as its `__call__`."""

    def __call__(self, ctx: Context) -> Iterator[None]:
        yield

    async def method(self, ctx: Context) -> None: ...


def called_coroutine() -> Any:
    """Call a coroutine, and close it, since nothing will await it."""
    called = coroutine(Context())
    called.close()
    return called


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (function, MiddlewareShape.FUNCTION),
        (lambda ctx: None, MiddlewareShape.FUNCTION),
        (functools.partial(two, more=1), MiddlewareShape.FUNCTION),
        (print, MiddlewareShape.FUNCTION),
        (Mock(return_value=None), MiddlewareShape.FUNCTION),
        (onion, MiddlewareShape.GENERATOR),
        (functools.partial(onion), MiddlewareShape.GENERATOR),
        (Callable_(), MiddlewareShape.GENERATOR),
        (coroutine, MiddlewareShape.COROUTINE),
        (Callable_().method, MiddlewareShape.COROUTINE),
        (async_onion, MiddlewareShape.ASYNC_GENERATOR),
    ],
)
def test_the_shape_is_known_before_the_first_call(fn: Middleware, shape: MiddlewareShape) -> None:
    check_middleware(fn)
    assert name_of(fn)
    assert shape_of(fn) is shape
    assert shape.is_async == shape.value.startswith(("co", "async"))


def test_names_leave_out_the_prefixes_of_factories() -> None:
    def _train(ctx: Context) -> None: ...

    assert name_of(_train) == "train"
    assert name_of(functools.partial(two, more=1)) == "two"
    assert name_of(lambda ctx: None) == "lambda"
    assert name_of(Callable_()) == "Callable_".strip("_")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (None, "not None. Does the factory that should make it end without `return`"),
        (onion(Context()), r"`onion` has been called already.*task.use\(onion\)"),
        (async_onion(Context()), "`async_onion` has been called already"),
        (called_coroutine(), "`coroutine` has been called already"),
        (Callable_, r"`Callable_` is a class.*task.use\(Callable_\(...\)\)"),
        (3, "not 3, an int"),
        (two, r"`two\(ctx.*more.*cannot be called with `ctx` alone.*If it is a factory, call it"),
        (
            no_argument,
            r"Give it one positional.*, `ctx`; or.*call it: `task.use\(no_argument\(\)\)",
        ),
    ],
)
def test_a_mistake_is_refused_by_name(mistake: object, message: str) -> None:
    with pytest.raises(MiddlewareError, match=message):
        Task().use(mistake)  # type: ignore[arg-type]


def test_a_decorator_may_give_a_middleware_its_further_arguments() -> None:
    def binding(fn: Callable[..., None]) -> Middleware:
        @functools.wraps(fn)
        def bound(ctx: Context) -> None:
            fn(ctx, more=1)

        return bound

    def passing_on(fn: Callable[..., None]) -> Middleware:
        return functools.wraps(fn)(lambda *args: fn(*args))

    Task().use(binding(two)).run(max_step=1)
    Task().use(passing_on(function)).run(max_step=1)
    with pytest.raises(MiddlewareError, match=r"`two\(ctx, more\)` cannot be called with `ctx`"):
        Task().use(passing_on(two))


@pytest.mark.parametrize("async_mode", [False, True])
def test_a_factory_of_one_argument_that_was_not_called_is_refused_in_its_first_step(async_mode):
    def make_evaluate(evaluator: object) -> Middleware:
        def _evaluate(ctx: Context) -> None: ...

        return _evaluate

    for factory, call in ((make_evaluate, "make_evaluate"), (mw.count_collected, "factory")):
        with (
            Task(async_mode=async_mode).use(factory) as task,
            pytest.raises(MiddlewareError, match=rf"call it: `task\.use\({call}\(\.\.\.\)\)`"),
        ):
            task.run(max_step=1)


@pytest.mark.parametrize("decorated", [contextmanager(onion), asynccontextmanager(async_onion)])
def test_a_generator_as_a_context_manager_is_refused_in_its_first_step(decorated: Any) -> None:
    with pytest.raises(MiddlewareError, match="returned a context manager, which nothing enters"):
        Task().use(decorated).run(max_step=1)


def scope(log: list[str]) -> Callable[[Context], object]:
    @contextmanager
    def stretch(ctx: Context) -> Iterator[None]:
        log.append("(")
        try:
            yield
        finally:
            log.append(")")

    return stretch


def shapes(log: list[str]) -> dict[str, Middleware]:
    def function(ctx: Context) -> None:
        log.append("a")

    def onion(ctx: Context) -> Iterator[None]:
        log.append("a")
        yield
        log.append("b")

    async def coroutine(ctx: Context) -> None:
        await asyncio.sleep(0)
        log.append("a")

    async def async_onion(ctx: Context) -> AsyncIterator[None]:
        log.append("a")
        yield
        await asyncio.sleep(0)
        log.append("b")

    return {
        "function": function,
        "onion": onion,
        "coroutine": coroutine,
        "async_onion": async_onion,
        "hidden_onion": lambda ctx: onion(ctx),
        "hidden_coroutine": lambda ctx: coroutine(ctx),
        "hidden_async_onion": lambda ctx: async_onion(ctx),
    }


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("function", "(a)|"),
        ("onion", "(a)|(b)"),
        ("coroutine", "(a)|"),
        ("async_onion", "(a)|(b)"),
        ("hidden_onion", "()(a)|(b)"),
        ("hidden_coroutine", "()(a)|"),
        ("hidden_async_onion", "()(a)|(b)"),
    ],
)
def test_around_surrounds_each_stretch_of_every_shape(name, expected, concurrent) -> None:
    log: list[str] = []
    with Task(async_mode=concurrent) as task:
        task.forward(around(shapes(log)[name], scope(log))).sync()  # type: ignore[arg-type]
        log.append("|")
        task.backward()
    assert "".join(log) == expected
    fn = shapes(log)[name]
    # Async mode runs a middleware on a worker thread or on the loop, by its shape.
    assert shape_of(around(fn, scope([]))) is shape_of(fn)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["onion", "async_onion", "hidden_onion", "hidden_async_onion"])
def test_around_lets_an_onion_handle_the_exception_of_the_rest(name: str) -> None:
    log: list[str] = []

    def handler(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError:
            log.append("handled")

    async def async_handler(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        except ZeroDivisionError:
            log.append("handled")

    shown: Any = async_handler if "async" in name else handler
    fn = (lambda ctx: shown(ctx)) if "hidden" in name else shown
    with Task() as task:
        task.use(around(fn, scope(log)))  # type: ignore[arg-type]
        task.use(lambda ctx: 1 / 0)
        task.run(max_step=1)
    assert "".join(log).endswith("()(handled)")


def twice(ctx: Context) -> Iterator[None]:
    yield
    yield


async def async_twice(ctx: Context) -> AsyncIterator[None]:
    yield
    yield


def stubborn(ctx: Context) -> Iterator[None]:
    try:
        yield
    except ZeroDivisionError:
        yield


async def async_stubborn(ctx: Context) -> AsyncIterator[None]:
    try:
        yield
    except ZeroDivisionError:
        yield


@pytest.mark.parametrize("surrounded", [False, True])
@pytest.mark.parametrize("fn", [twice, async_twice, stubborn, async_stubborn])
def test_a_second_yield_is_refused(fn: Middleware, surrounded: bool) -> None:
    name = fn.__name__
    with Task() as task:
        task.use(around(fn, scope([])) if surrounded else fn)  # type: ignore[arg-type]
        if "stubborn" in name:
            task.use(lambda ctx: 1 / 0)
        with pytest.raises(MiddlewareError, match=f"`{name}` has yielded a second time"):
            task.run(max_step=1)


def test_a_generator_that_ends_before_its_yield_has_no_way_out() -> None:
    log: list[str] = []

    def sometimes(ctx: Context) -> Iterator[None]:
        if ctx.total_step == 0:
            return
        yield
        log.append(f"out of {ctx.total_step}")

    async def async_sometimes(ctx: Context) -> AsyncIterator[None]:
        if ctx.total_step == 1:
            return
        yield
        log.append(f"async out of {ctx.total_step}")

    with Task() as task:
        task.use(sometimes).use(around(async_sometimes, scope([]))).use(async_sometimes)  # type: ignore[arg-type]
        task.run(max_step=2)
    assert log == ["async out of 0", "async out of 0", "out of 1"]


def stage(name: str, log: list[str], *, last: bool = False, error: Exception | None = None) -> Any:
    def stage(ctx: Context) -> Iterator[Any]:
        yield
        log.append(name)
        if last:
            yield LAST
            log.append(f"{name}, last")
        if error is not None:
            raise error

    return stage


@pytest.mark.parametrize("form", ["plain", "timed", "serial", "parallel", "async"])
def test_what_follows_yield_last_runs_after_all_others(form: str) -> None:
    log: list[str] = []
    inner = [stage("b", log), stage("c", log, last=True), stage("d", log)]
    with Task(async_mode=form == "async", n_async_workers=2) as task:
        if form == "timed":
            task.use_step_wrapper(StepTimer(print_per_step=0))
        task.use(stage("a", log))
        if form in ("serial", "parallel"):
            task.use(getattr(task, form)(*inner))
        else:
            for fn in inner:
                task.use(fn)
        task.use(stage("e", log, last=True))
        task.run(max_step=2)
    assert log == ["e", "d", "c", "b", "a", "e, last", "c, last"] * 2


def test_an_error_of_a_way_out_reaches_those_that_wait_for_its_end() -> None:
    log: list[str] = []

    def catching(ctx: Context) -> Iterator[Any]:
        yield
        try:
            yield LAST
        except LookupError:
            log.append("caught")

    with Task() as task:
        task.use(stage("a", log)).use(stage("b", log, error=LookupError()))
        task.use(stage("c", log, last=True)).use(catching)
        task.run(max_step=1)
    assert log == ["c", "b", "caught", "c, last"]

    log.clear()
    with Task() as task:
        task.use(stage("a", log)).use(stage("b", log, error=LookupError()))
        task.use(stage("c", log, last=True))
        with pytest.raises(LookupError):
            task.run(max_step=1)
    assert log == ["c", "b"]


@pytest.mark.parametrize("surrounded", [False, True])
@pytest.mark.parametrize("has_failed", [False, True])
def test_a_middleware_is_the_last_once_only(surrounded: bool, has_failed: bool) -> None:
    def greedy(ctx: Context) -> Iterator[Any]:
        with suppress(LookupError):
            yield
        while True:
            yield LAST

    def fail(ctx: Context) -> None:
        if has_failed:
            raise LookupError

    fn: Any = around(greedy, scope([])) if surrounded else greedy  # type: ignore[arg-type]
    with Task() as task, pytest.raises(MiddlewareError, match="`greedy` has yielded a second time"):
        task.use(fn).use(fail).run(max_step=1)
