"""Derive arguments of the command line, and docstrings of calls, from the options of a run.

Their texts are the sentences below the fields.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import Any, TypeVar

from ding_lite.options.run_options import USUAL, RunOptions
from ding_lite.options.words import Pairs

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def sentences_of(config: type) -> dict[str, str]:
    """Read the sentences below the fields of a dataclass, including inherited fields."""
    found: dict[str, str] = {}
    for cls in reversed(config.__mro__[:-1]):
        [definition] = ast.parse(inspect.getsource(cls)).body
        if isinstance(definition, ast.ClassDef):
            found |= sentences_below(definition)
    return found


def sentences_below(definition: ast.ClassDef) -> dict[str, str]:
    """Read the sentences below the assignments of a class, by the assigned names."""
    found = {}
    for one, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign | ast.Assign) and isinstance(text, ast.Expr):
            target = one.target if isinstance(one, ast.AnnAssign) else one.targets[0]
            found[ast.unparse(target)] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


_SENTENCES = sentences_of(RunOptions)


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
    return f"{_SENTENCES[one.name].removesuffix('.')}{more}."


def _help(one: Field[Any], text: str, of: str, default: object) -> str:
    text = re.sub("`([a-z_]+)`", r"--\1", f"{text[0].lower()}{text[1:]}".removesuffix("."))
    if one.metadata["typed"].get("action") in ("append", Pairs):
        text += "; may be given several times"
    usual = one.metadata["usual"].format_map(USUAL[of]) if default is None else f"{default}"
    return f"{text} (default: {usual.removesuffix('.0')})" if usual else text


def documented(of: str) -> Callable[[FunctionT], FunctionT]:
    """Add the options of a call to its docstring, before `**more`."""

    def add(fn: FunctionT) -> FunctionT:
        known, documented = {one.name: one for one in fields(RunOptions)}, ""
        for name in inspect.signature(fn).parameters:
            if name in known and name != "env":
                usual = known[name].metadata["usual"].format_map(USUAL[of])
                text = _sentence(known[name], evolves=of == "evolve", in_python=True)
                text += f" Default: {usual}." if usual else ""
                documented += textwrap.fill(
                    f"{name}: {text}", 96, initial_indent=4 * " ", subsequent_indent=8 * " "
                )
                documented += "\n"
        if doc := inspect.getdoc(fn):  # none with `python -OO`; before 3.13 `__doc__` is indented
            fn.__doc__ = doc.replace("    **more:", f"{documented}    **more:", 1)
        return fn

    return add
