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


REFUSED: list[tuple[tuple[Any, ...], str]] = [
    *(
        ((main,), f"`{main.__name__}` is a .* Give a plain function")
        for main in (coroutine, asynchronous_generator, generator)
    ),
    (("main",), "`main` is 'main'; a function was expected"),
    ((add, 1), r"`add` takes \(one, two\): missing .* 'two'\. Its arg"),
]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_nodes_could_not_run_is_refused_before_they_start(call, message, workers) -> None:
    with pytest.raises(ConfigError, match=message):
        Parallel.runner(workers)(*call)


@wraps(coroutine)
def wrapped(*words: str) -> tuple[str, ...]:
    return words


def test_a_wrapper_is_asked_for_its_own_arguments() -> None:
    assert Parallel.runner(1)(wrapped, "takes any") == [("takes any",)]
