"""Derive arguments of the command line, and docstrings of calls, from the options of a run.

Their texts are the sentences below the fields.
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import Field, fields
from itertools import pairwise
from typing import Any, TypeVar

from ding_lite.options.run_options import USUAL, RunOptions
from ding_lite.options.words import Pairs

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def sentences_of(owner: type) -> dict[str, str]:
    """Read the sentences below the fields of a class, including inherited ones, and `__doc__`."""
    found: dict[str, str] = {}
    for cls in reversed(owner.__mro__[:-1]):
        found |= _sentences_in(cls.__module__).get(cls.__qualname__, {})
    return found


@functools.cache
def _sentences_in(module: str) -> dict[str, dict[str, str]]:
    found = {}
    for one in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(one, ast.ClassDef):
            found[one.name] = {"__doc__": ast.get_docstring(one) or ""}
            for field_and_text in pairwise(one.body):
                match field_and_text:
                    case (
                        ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]),
                        ast.Expr(ast.Constant(str(text))),
                    ):
                        found[one.name][name] = " ".join(text.split())
    return found


def add_options(
    parser: argparse.ArgumentParser, *, of: str, given: Mapping[str, Any] | None = None
) -> list[str]:
    """Add the options of a command or a program, and return their names.

    `given` names further options, with defaults.
    """
    given, names = given or {}, []
    for one in fields(RunOptions):
        name, typed, default = one.name, dict(one.metadata["typed"]), None
        if not typed or (of not in one.metadata["of"] and name not in given):
            continue
        names.append(name)
        if of == "program" and "action" not in typed:  # `Options` checks the numbers
            default = given.get(name, one.default)
            typed["type"] = {"int": int, "float": float}.get(str(one.type), typed.get("type", str))
        flags = [one.metadata["flag"] or f"--{name.replace('_', '-')}"]
        if name == "env" and of != "program":
            flags = [name]
        else:
            typed["dest"] = name
        text = _sentence(one, evolves=of == "evolve" or "population" in given)
        parser.add_argument(*flags, **typed, help=_help(one, text, of, default))
    return names


def _sentence(one: Field[Any], *, evolves: bool, in_python: bool = False) -> str:
    facts = one.metadata
    more = facts["in_evolve"] * evolves + facts["in_python"] * in_python
    return f"{sentences_of(RunOptions)[one.name].removesuffix('.')}{more}."


def _help(one: Field[Any], text: str, of: str, default: object) -> str:
    text = re.sub("`([a-z_]+)`", r"--\1", f"{text[0].lower()}{text[1:]}".removesuffix("."))
    if one.metadata["typed"].get("action") in ("append", Pairs):
        text += "; may be given several times"
    usual = one.metadata["usual"].format_map(USUAL[of]) if default is None else f"{default}"
    return f"{text} (default: {usual.removesuffix('.0')})" if usual else text


def documented(of: str) -> Callable[[FunctionT], FunctionT]:
    """Add the options of a call to its docstring, before `**more`."""

    def add(fn: FunctionT) -> FunctionT:
        known, documented = {one.name: one for one in fields(RunOptions) if one.name != "env"}, ""
        with suppress(OSError):  # a frozen program has no sources
            for one in filter(None, map(known.get, inspect.signature(fn).parameters)):
                usual = one.metadata["usual"].format_map(USUAL[of])
                text = f"    {one.name}: {_sentence(one, evolves=of == 'evolve', in_python=True)}"
                text += f" Default: {usual}." if usual else ""
                documented += textwrap.fill(text, 96, subsequent_indent=8 * " ") + "\n"
        if doc := inspect.getdoc(fn):  # none with `python -OO`; before 3.13 `__doc__` is indented
            fn.__doc__ = doc.replace("    **more:", f"{documented}    **more:", 1)
        return fn

    return add
