"""Signals and exits in the middle of a run.

An interrupted run completes its current step first. Code that waits for another process checks
`is_interrupted`, and code that calls a user's function distinguishes a signal from an exit of that
function.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType
from typing import NoReturn

from ding_lite.errors import DingLiteError

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a program."""


class Terminated(SystemExit):
    """SIGTERM has ended this node but not its job; the exit code is 143, as shells expect."""

    def __init__(self, code: int = 128 + signal.SIGTERM) -> None:
        super().__init__(code)


class Interruption:
    """The signal that ends a run, if one was received."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self.at = 0.0

    def raise_if_any(self) -> None:
        """Raise KeyboardInterrupt or Terminated for a received signal, after the step has ended."""
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


@contextmanager
def postponed() -> Iterator[None]:
    """Defer signals that end a program to the end of a `with` block, so that it completes."""
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for signum in ENDING:
            before[signum] = signal.signal(signum, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        for number in came:
            signal.raise_signal(number)


def is_interrupted() -> bool:
    interruption = _CURRENT.get()
    return interruption is not None and interruption.signum is not None


def refuse_exit(
    error: SystemExit | KeyboardInterrupt, subject: str, kind: type[DingLiteError], advice: str
) -> NoReturn:
    """Raise an error for a user's function that has called `sys.exit` in the middle of a run.

    The message begins with `subject`, which names the function, and ends with the sentence
    `advice`. An exit that a signal handler has raised is raised again unchanged.
    """
    if is_of_a_signal(error):
        raise error
    did = "raised KeyboardInterrupt without Ctrl-C"
    if isinstance(error, SystemExit):
        did = f"called `sys.exit({error.code!r})`"
    raise kind(f"{subject} {did} in the middle of a run. {advice}") from error


def is_of_a_signal(error: BaseException) -> bool:
    """Return whether a signal raised an exception: its traceback has the frame of a handler."""
    handlers = _codes_of_handlers() | {Interruption.raise_if_any.__code__}
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) in (
        signal.default_int_handler,  # implemented in C: it has no frame in the traceback
        None,
    ):
        return True
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def is_handling_signal() -> bool:
    """Return whether a program's signal handler is running, which may have interrupted any code."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers, frame = _codes_of_handlers(), sys._getframe(1)
    while frame.f_code not in handlers:
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return True


def _codes_of_handlers() -> set[CodeType]:
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    functions = [*handlers, *(type(handler).__call__ for handler in handlers if callable(handler))]
    codes = [getattr(function, "__code__", None) for function in functions]
    return {code for code in codes if isinstance(code, CodeType)}


def is_for_program(error: BaseException) -> bool:
    """Return whether an error must be raised to the program: an exit on the main thread.

    Signal handlers raise KeyboardInterrupt or SystemExit on the main thread. On other threads such
    an error comes from the called function, and is treated like any other error.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and not isinstance(error, Exception)


def words_of(error: BaseException) -> str:
    """Return the message of an error, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as raised:  # noqa: BLE001 - the class of the error may be the user's
        return f"(no message: {type(raised).__name__} was raised instead)"


def handle_as_new_program(signum: int) -> None:
    """Handle a signal as a new program does, in a forked child that has its parent's handlers."""
    is_ctrl_c = signum == signal.SIGINT
    signal.signal(signum, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)
    signal.raise_signal(signum)
