"""Format tracebacks from the first frame of the user's program."""

from __future__ import annotations

from collections.abc import Iterator
from traceback import TracebackException
from types import TracebackType

from ding_lite.errors import DingLiteError

_MACHINERY = frozenset({"ding_lite", "importlib", "multiprocessing", "runpy"})
"""Packages that call or import a program; their frames are left out."""


def within_program(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the program's first frame; None if it has no such frame."""
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module.split(".")[0] not in _MACHINERY:
            return trace
        trace = trace.tb_next
    return None


def format_error(error: BaseException) -> str:
    """Format an error with its traceback from the program's first frame.

    Return an empty string for a `DingLiteError` without a frame of the program, as its message is
    enough. Any other error without such a frame is a bug of this package, and keeps its whole
    traceback.
    """
    passed = any(within_program(one.__traceback__) is not None for one in _chain(error))
    if isinstance(error, DingLiteError) and not passed:
        return ""
    trace = within_program(error.__traceback__)
    if trace is None and not isinstance(error, SyntaxError):  # it shows its line by itself
        trace = error.__traceback__
    return "".join(TracebackException(type(error), error, trace).format())


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__
