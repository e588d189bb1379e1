"""`sys.exit` in the middle of a run: never an end that looks as if the program had finished."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from ding_lite.errors import MiddlewareError, RemoteError
from ding_lite.runtime import Context, LocalRouter, Task
from ding_lite.testing import Cluster

CODES = pytest.mark.parametrize("code", [None, 0], ids=repr)


def leaving(code: Any) -> dict[str, Callable[..., Any]]:
    """Make middleware of every shape that exit in their first step."""

    def leave(ctx: Context) -> None:
        if ctx.total_step == 0:
            sys.exit(code)

    def generator(ctx: Context) -> Iterator[None]:
        leave(ctx)
        yield

    def way_out(ctx: Context) -> Iterator[None]:
        yield
        leave(ctx)

    async def coroutine(ctx: Context) -> None:
        leave(ctx)

    async def async_generator(ctx: Context) -> AsyncIterator[None]:
        leave(ctx)
        yield

    return {fn.__name__: fn for fn in (leave, generator, way_out, coroutine, async_generator)}


@CODES
@pytest.mark.parametrize("async_mode", [False, True], ids=["in order", "async"])
@pytest.mark.parametrize("name", leaving(0))
def test_an_exit_of_a_middleware_is_an_error_that_names_it(name, async_mode, code) -> None:
    message = rf"`{name}`.* called `sys.exit\({code}\)`"
    with (
        Task(async_mode=async_mode) as task,
        pytest.raises(MiddlewareError, match=message) as caught,
    ):
        task.use(leaving(code)[name]).run(max_step=2)
    assert type(caught.value.__cause__) is SystemExit
    assert f"in middleware `{name}`" in caught.value.__notes__[0]


def test_an_exit_of_composed_middleware_or_of_one_run_by_hand_is_an_error() -> None:
    leave = leaving(0)["leave"]
    with Task() as task:
        with pytest.raises(MiddlewareError, match="`leave` called"):
            task.forward(leave)
        task.use(task.serial(lambda ctx: None, leave))
        with pytest.raises(MiddlewareError, match=r"`serial\(lambda, leave\)`"):
            task.run(max_step=1)


@pytest.mark.parametrize("async_mode", [False, True], ids=["in order", "async"])
def test_an_exit_of_a_listener_is_an_error_that_names_it(async_mode: bool) -> None:
    with Task(async_mode=async_mode) as task:
        task.on("go", leaving(0)["leave"])
        task.use(lambda ctx: task.emit("go", ctx))
        with pytest.raises(
            MiddlewareError, match="Listener `leave` of event `go` called"
        ) as caught:
            task.run(max_step=1)
    assert caught.value.__notes__[0].startswith("in listener `leave` of event `go`, step 0, node 0")


@pytest.mark.parametrize("async_mode", [False, True], ids=["in order", "async"])
@pytest.mark.parametrize("of_listener", [False, True], ids=["middleware", "listener"])
def test_an_exit_with_another_code_is_not_replaced_and_closes_what_is_open(async_mode, of_listener):
    closed: list[str] = []
    is_open = threading.Event()

    async def around(ctx: Context) -> AsyncIterator[None]:
        is_open.set()
        try:
            yield
        finally:
            closed.append("around")

    def leave(ctx: Context) -> None:
        assert is_open.wait(10.0)  # in async mode both run at the same time
        if of_listener:
            task.emit("go", ctx)
        else:
            sys.exit(3)

    with Task(async_mode=async_mode) as task:
        task.on("go", leaving(3)["leave"])
        task.use(around).use(leave)
        with pytest.raises(SystemExit) as caught:
            task.run(max_step=1)
    assert (caught.value.code, closed) == (3, ["around"])


@CODES
@pytest.mark.parametrize("where", ["__enter__", "__exit__"])
def test_an_exit_of_a_middleware_that_is_entered_or_left_is_an_error(where: str, code: Any) -> None:
    class Resource:
        def __call__(self, ctx: Context) -> None: ...

        def __enter__(self) -> None:
            if where == "__enter__":
                sys.exit(code)

        def __exit__(self, *_: object) -> None:
            if where == "__exit__":
                sys.exit(code)

    with Task() as task:
        task.use(Resource())
        with pytest.raises(MiddlewareError, match=rf"`{where}` of .* called `sys.exit\({code}\)`"):
            task.run(max_step=1)


def test_an_exit_of_the_program_itself_is_its_own_affair() -> None:
    def program() -> None:
        with Task() as task:
            task.use(lambda ctx: None).run(max_step=1)
            sys.exit(0)

    with pytest.raises(SystemExit):
        program()


@pytest.mark.parametrize("as_object", [False, True], ids=["function", "object"])
def test_an_exit_of_a_program_s_own_signal_handler_is_left_alone(as_object: bool) -> None:
    class Leave:
        def __call__(self, *_: object) -> None:
            sys.exit(0)

    before = signal.signal(signal.SIGUSR1, Leave() if as_object else lambda *_: sys.exit(0))
    try:
        with Task() as task:
            task.use(lambda ctx: os.kill(os.getpid(), signal.SIGUSR1))
            with pytest.raises(SystemExit):
                task.run(max_step=1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_exit_of_a_handler_of_calls_is_the_answer() -> None:
    alone = LocalRouter()
    with Cluster(2) as cluster:
        asker, other = cluster.routers
        for router in (other, alone):
            router.register("leave", lambda: sys.exit(0))
        for caller, node in ((asker, 1), (other, 1), (alone, 0)):
            with pytest.raises(RemoteError, match="SystemExit"):
                caller.call(node, "leave")


def test_an_exit_of_a_listener_of_the_router_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    is_going_on = threading.Event()
    with Cluster(2) as cluster:
        asker, other = cluster.routers
        other.on("go", lambda: sys.exit(0))
        other.on("go on", is_going_on.set)
        asker.emit("go")
        asker.emit("go on")
        assert is_going_on.wait(10.0)  # an exit would end the thread, and nothing else
    [record] = caplog.records
    assert record.getMessage() == "a listener of node 1's router has raised"
    assert isinstance(record.exc_info and record.exc_info[1], MiddlewareError)
