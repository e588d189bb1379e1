"""Signals and exits in the middle of a run.

An interrupted run ends its step first. Code that waits for another process checks here whether
that has begun, and code that calls a user's function tells a signal from an exit of the function.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType
from typing import NoReturn

from ding_lite.errors import DingLiteError


class Terminated(SystemExit):
    """SIGTERM has ended this node, and not its job; the exit code is 143, as the shell expects."""

    def __init__(self, code: int = 128 + signal.SIGTERM) -> None:
        super().__init__(code)


class Interruption:
    """The signal that ends a run, if one has come."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self.at = 0.0

    def raise_if_any(self) -> None:
        """Raise KeyboardInterrupt or Terminated for the signal, now that the step has ended."""
        if self.signum == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signum is not None:
            raise Terminated

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this the interruption of the thread's run for the length of a `with` block."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


_CURRENT: ContextVar[Interruption | None] = ContextVar("ding_lite_interruption", default=None)


def is_interrupted() -> bool:
    interruption = _CURRENT.get()
    return interruption is not None and interruption.signum is not None


def refuse_exit(
    error: SystemExit | KeyboardInterrupt, subject: str, kind: type[DingLiteError], advice: str
) -> NoReturn:
    """Raise an error for a user's function that has ended the program in the middle of a run.

    `subject` names the function at the beginning of a sentence, `advice` is one. An exit that a
    signal's handler has raised goes on as it is.
    """
    if is_of_a_signal(error):
        raise error
    did = f"called `sys.exit({error.code!r})`" if isinstance(error, SystemExit) else "raised"
    did += " KeyboardInterrupt without Ctrl-C" if did == "raised" else ""
    raise kind(f"{subject} {did} in the middle of a run. {advice}") from error


def is_of_a_signal(error: BaseException) -> bool:
    """Whether a signal's handler is among the frames that an exception has passed."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) in (
        signal.default_int_handler,  # which is no Python code, so that it leaves no frame
        None,
    ):
        return True
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: object) -> CodeType | None:
    for function in (handler, type(handler).__call__ if callable(handler) else None):
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None


def is_for_program(error: BaseException) -> bool:
    """Return whether an error must go on to the program, on any thread of ours.

    A signal's handler raises on the main thread, KeyboardInterrupt or SystemExit. On any other
    thread such an error is one of the function that was called, like every other.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and not isinstance(error, Exception)


def words_of(error: BaseException) -> str:
    """Return the message of an error, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as raised:  # noqa: BLE001 - the class of an error is the program's own
        return f"(no message: {type(raised).__name__} was raised instead)"
