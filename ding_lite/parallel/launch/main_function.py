"""Check the function that every node is to run: its kind, its arguments and where it is defined.

A node finds `main` by importing the program a second time, under the name `__mp_main__`. This
cannot work for a function within a function, in a notebook, or in the `__main__.py` of a package.
Each of these is checked here, because Python's own errors do not name the cause.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from ding_lite.errors import ConfigError


def check_kind(main: Callable[..., object]) -> None:
    if not callable(main):
        raise ConfigError(f"`main` is {main!r}; a function was expected, without parentheses.")
    is_coroutine = inspect.iscoroutinefunction(main) or inspect.isasyncgenfunction(main)
    if is_coroutine or inspect.isgeneratorfunction(main):
        kind = "a coroutine" if is_coroutine else "a generator"
        advice = ", which may call `asyncio.run(...)`" if is_coroutine else ""
        raise ConfigError(
            f"`{getattr(main, '__qualname__', main)}` is {kind} function, so a call runs nothing "
            f"of it. Give a plain function{advice}; middleware of a task may be asynchronous."
        )


def check_arguments(
    main: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    try:
        signature = inspect.signature(main, follow_wrapped=False)  # a wrapper may add arguments
    except (TypeError, ValueError):  # some functions in C have no signature
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(
            f"`{getattr(main, '__qualname__', main)}` takes {signature}: {error}. Its arguments "
            f"follow it in the call of the runner, and `--` on a command line."
        ) from error


def check_importable(main: Callable[..., object]) -> None:
    # Under pdb a program has no `__spec__`, which multiprocessing reads.
    vars(sys.modules["__main__"]).setdefault("__spec__", None)
    name = getattr(main, "__qualname__", "")
    if "<lambda>" in name or "<locals>" in name:
        kind = "a lambda" if "<lambda>" in name else "defined within a function"
        raise ConfigError(
            f"`{name}` is {kind}, and a node, which is another process, could not find it. "
            f"Define it at the top level of a module, and give it arguments instead of what it "
            f"sees around it: runner(main, argument)."
        )
    if getattr(main, "__module__", None) == "__main__":
        _check_program()
    if inspect.isfunction(main):
        _check_name(main)


def _check_program() -> None:
    program = sys.modules["__main__"]
    module = getattr(program.__spec__, "name", None)
    file = getattr(program, "__file__", None)
    if module is not None and module.split(".")[-1] == "__main__":
        raise ConfigError(
            f"`main` is defined in {file}, which Python does not import a second time, so a node "
            f"could not find it. Move it to another module of the package, and import it there."
        )
    if module is None and (file is None or not Path(file).is_file()):
        raise ConfigError(
            "`main` was defined in an interactive session or a notebook, or came from standard "
            "input, so a node, which is another process, could not find it. Save it in a file "
            "and import it from there (in a notebook, `%%writefile train.py` on top of its cell "
            "saves it), or use n_parallel_workers=1, which runs it here."
        )


def _check_name(main: FunctionType) -> None:
    if main.__module__ is None:
        raise ConfigError(
            f"`{main.__qualname__}` was made by `exec` and belongs to no module, so a node, which "
            f"is another process, could not find it. Define it in a file, and import it from there."
        )
    found: object = sys.modules.get(main.__module__)
    file = getattr(found, "__file__", None)
    for part in main.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is main:
        return
    where = "the program" if main.__module__ == "__main__" else f"`{main.__module__}`"
    raise ConfigError(
        f"`{main.__qualname__}` is not found under that name in {where}, which is {file} here, so "
        f"a node, which is another process, could not find it either. Was it renamed, or does "
        f"another program run this one, such as cProfile? Define it in a module of its own, and "
        f"import it from there."
    )
