"""Read the sentences below the fields of classes."""

from __future__ import annotations

import ast
import inspect


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
