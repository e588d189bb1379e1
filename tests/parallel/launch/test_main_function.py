"""Functions that no node could run; `tests/procs/test_runner` has those that no node could find."""

from __future__ import annotations

from functools import wraps
from typing import Any

import pytest

from ding_lite.errors import ConfigError
from ding_lite.parallel import Parallel


async def coroutine() -> None: ...


async def asynchronous_generator() -> Any:
    yield


def generator() -> Any:
    yield


def add(one, two): ...


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("main", [coroutine, asynchronous_generator, generator])
def test_a_main_of_which_a_call_runs_nothing_is_refused(main: Any, workers: int) -> None:
    with pytest.raises(ConfigError, match=f"`{main.__name__}` is a .* Give a plain function"):
        Parallel.runner(workers)(main)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_main_that_is_no_function_is_refused(workers: int) -> None:
    main: Any = "main"
    with pytest.raises(ConfigError, match="`main` is 'main'; a function was expected"):
        Parallel.runner(workers)(main)


@wraps(coroutine)
def wrapped(*words: str) -> tuple[str, ...]:
    return words


@pytest.mark.parametrize("workers", [1, 2])
def test_arguments_that_main_does_not_take_are_refused_before_nodes_start(workers: int) -> None:
    with pytest.raises(ConfigError, match=r"`add` takes \(one, two\): missing .* 'two'\. Its arg"):
        Parallel.runner(workers)(add, 1)
    assert Parallel.runner(1)(wrapped, "takes any") == [("takes any",)]
