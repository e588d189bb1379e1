"""Tracebacks as a user wants them: from where the user's own program comes in."""

from __future__ import annotations

from collections.abc import Iterator
from traceback import TracebackException
from types import TracebackType

from ding_lite.errors import DingLiteError

_MACHINERY = frozenset({"ding_lite", "importlib", "multiprocessing", "runpy"})
"""What calls or imports a program, by the first part of the module's name."""


def within_program(trace: TracebackType | None) -> TracebackType | None:
    """Leave out how a program was called; None if an error never passed through it."""
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module.split(".")[0] not in _MACHINERY:
            return trace
        trace = trace.tb_next
    return None


def format_error(error: BaseException) -> str:
    """Spell out an error, with its traceback from where the program comes in.

    An error that is raised on purpose and never passed through the program is told by its message,
    so this returns an empty string. Any other that has not is a fault of ours, and keeps all of
    its traceback.
    """
    passed = any(within_program(one.__traceback__) is not None for one in _chain(error))
    if isinstance(error, DingLiteError) and not passed:
        return ""
    trace = within_program(error.__traceback__)
    if trace is None and not isinstance(error, SyntaxError):  # which shows its line by itself
        trace = error.__traceback__
    return "".join(TracebackException(type(error), error, trace).format())


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it follows from, each once."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__
